#include "watching.h"

#include <cairn/checkpoint.h>
#include <cairn/latest.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "ending_signals.h"
#include "json_writer.h"
#include "printable.h"
#include "save_line.h"
#include "status.h"

namespace cairn::cli {
namespace {

namespace fs = std::filesystem;
using Clock = WatchedSave::Clock;
using std::chrono::milliseconds;

constexpr milliseconds kPoll{50};                 // for a signal
constexpr std::chrono::seconds kLogInterval{10};  // between two lines of a save
constexpr std::size_t kColumnsDefault = 100;

struct EndedSave {
  fs::path directory;
  std::string save_id;
  bool is_committed;
  std::chrono::duration<double> watched;
  std::uint64_t bytes;
};

// Whether the checkpoint in the directory is the save's.
bool is_in_place(const SaveInFlight& save) {
  const Result<Checkpoint> checkpoint = open(save.directory);
  return checkpoint && checkpoint->save_id() == save.save_id;
}

using Key = std::pair<fs::path, std::string>;  // of a save: its directory and its id
using Lines = std::map<Key, std::string>;

// The saves of the last look, and what has changed since the look before.
class Watch {
 public:
  void look(std::vector<SaveInFlight> found, Clock::time_point now) {
    std::map<Key, WatchedSave> current;
    for (SaveInFlight& save : found) {
      Key key(save.directory, to_hex(save.save_id));
      auto before = saves_.extract(key);
      if (before.empty()) {
        started_.emplace(key, now);
        current.emplace(std::move(key), WatchedSave(std::move(save), now));
      } else {
        before.mapped().look(std::move(save), now);
        current.insert(std::move(before));
      }
    }
    for (const auto& [key, save] : saves_) end(key, save, now);
    saves_ = std::move(current);
  }

  std::vector<EndedSave> take_ended() { return std::exchange(ended_, {}); }
  bool has_failed() const { return has_failed_ || std::any_of(saves_.begin(), saves_.end(), is_dead); }
  bool is_idle() const { return std::all_of(saves_.begin(), saves_.end(), is_dead); }

  Lines lines(std::size_t columns) const {
    Lines lines;
    for (const auto& [key, save] : saves_) lines.emplace(key, save.line(columns));
    return lines;
  }

  std::string json(const std::vector<EndedSave>& ended) const {
    JsonWriter json(JsonWriter::Form::kOneLine);
    json.begin_object();
    json.key("saves").begin_array();
    for (const auto& [key, save] : saves_) write_save(json, save.save());
    json.end_array();
    json.key("ended").begin_array();
    for (const EndedSave& save : ended) {
      json.begin_object();
      json.key("directory").text(save.directory.string());
      json.key("save_id").text(save.save_id);
      json.key("is_committed").boolean(save.is_committed);
      json.end_object();
    }
    json.end_array();
    json.end_object();
    return std::move(json).take();
  }

 private:
  using Entry = std::pair<const Key, WatchedSave>;
  static bool is_dead(const Entry& entry) { return entry.second.save().is_leftover; }

  void end(const Key& key, const WatchedSave& save, Clock::time_point now) {
    const bool is_committed = is_in_place(save.save());
    has_failed_ |= !is_committed;
    const auto started = started_.extract(key);
    ended_.push_back({key.first, key.second, is_committed, now - started.mapped(), bytes_of(save.save()).total});
  }

  std::map<Key, WatchedSave> saves_;
  std::map<Key, Clock::time_point> started_;
  std::vector<EndedSave> ended_;
  bool has_failed_ = false;
};

std::string line_of(const EndedSave& save) {
  const std::string name = printable(save.directory.filename().string());
  if (!save.is_committed) return name + "  ended, and is not the checkpoint in place";
  return fmt::format("{}  committed, {}, watched for {:.1f} s", name, byte_text(save.bytes), save.watched.count());
}

// At most `size` bytes, not cut within a character of UTF-8.
std::string cut(std::string text, std::size_t size) {
  if (text.size() <= size) return text;
  while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xc0U) == 0x80U) --size;
  text.resize(size);
  return text;
}

void print(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

// Shows the lines of the last look in place of those of the look before.
class Screen {
 public:
  virtual ~Screen() = default;
  virtual std::size_t columns() const { return kColumnsDefault; }
  // `ended` stays.
  virtual void show(const std::vector<std::string>& ended, const Lines& lines) = 0;
};

class Terminal : public Screen {
 public:
  std::size_t columns() const override {
    winsize size{};
    const bool is_known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col != 0;
    return is_known ? size.ws_col : kColumnsDefault;
  }

  void show(const std::vector<std::string>& ended, const Lines& lines) override {
    std::string text;
    if (drawn_ > 0) text += fmt::format("\x1b[{}A", drawn_);  // up
    for (const std::string& line : ended) text += line + "\x1b[K\n";
    // A line that wraps would take two rows, and the cursor would go up too little.
    for (const auto& [key, line] : lines) text += cut(line, columns() - 1) + "\x1b[K\n";
    if (lines.empty()) text += "no save is in flight\x1b[K\n";
    text += "\x1b[J";  // erase below
    drawn_ = std::max<std::size_t>(lines.size(), 1);
    print(text);
  }

 private:
  std::size_t drawn_ = 0;
};

class Log : public Screen {
 public:
  void show(const std::vector<std::string>& ended, const Lines& lines) override {
    const Clock::time_point now = Clock::now();
    std::string text;
    for (const std::string& line : ended) text += line + "\n";
    std::map<Key, Clock::time_point> printed;
    for (const auto& [key, line] : lines) {
      const auto before = printed_.find(key);
      const bool is_due = before == printed_.end() || now - before->second >= kLogInterval;
      if (is_due) text += line + "\n";
      printed.emplace(key, is_due ? now : before->second);
    }
    printed_ = std::move(printed);
    print(text);
  }

 private:
  std::map<Key, Clock::time_point> printed_;
};

bool is_terminal() {
  const char* const terminal = std::getenv("TERM");  // NOLINT(concurrency-mt-unsafe): no thread writes the environment
  return ::isatty(STDOUT_FILENO) == 1 && terminal != nullptr && std::string_view(terminal) != "dumb";
}

void show(Watch& watch, Screen& screen, bool as_json) {
  const std::vector<EndedSave> ended = watch.take_ended();
  if (as_json) return print(watch.json(ended));
  std::vector<std::string> lines;
  for (const EndedSave& save : ended) lines.push_back(line_of(save));
  screen.show(lines, watch.lines(screen.columns()));
}

// Until the next look. False after a signal.
bool wait(milliseconds interval) {
  const Clock::time_point end = Clock::now() + interval;
  while (EndingSignals::caught() == 0 && Clock::now() < end) std::this_thread::sleep_for(std::min(kPoll, interval));
  return EndingSignals::caught() == 0;
}

}  // namespace

Outcome watch(const fs::path& root, const WatchOptions& options) {
  const EndingSignals signals;
  Terminal terminal;
  Log log;
  Screen& screen = is_terminal() ? static_cast<Screen&>(terminal) : log;
  Watch watch;
  for (bool is_first = true;; is_first = false) {
    Result<std::vector<SaveInFlight>> saves = saves_in_flight(root);
    if (!saves && is_first) return {{}, message_of(saves.error()), ExitCode::kUnreadable};
    if (saves) {
      watch.look(*std::move(saves), Clock::now());
      show(watch, screen, options.json);
    } else {
      std::fputs(message_of(saves.error()).c_str(), stderr);
    }
    if (std::ferror(stdout) != 0) return {};  // main reports it
    if (saves && options.until_idle && watch.is_idle()) break;
    if (!wait(options.interval)) return {{}, {}, ExitCode::kOk, EndingSignals::caught()};
  }
  return {{}, {}, watch.has_failed() ? ExitCode::kCheckFailed : ExitCode::kOk};
}

}  // namespace cairn::cli

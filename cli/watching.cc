#include "watching.h"

#include <cairn/checkpoint.h>
#include <cairn/latest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ending_signals.h"
#include "json_writer.h"
#include "live_lines.h"
#include "printable.h"
#include "save_line.h"
#include "status.h"

namespace cairn::cli {
namespace {

using std::chrono::milliseconds;

struct EndedSave {
  WatchedSave watched;
  bool is_committed;
};

// Whether the checkpoint in the directory is the save's.
bool is_in_place(const SaveInFlight& save) {
  const Result<Checkpoint> checkpoint = open(save.directory);
  return checkpoint && checkpoint->save_id() == save.save_id;
}

// The saves of the last look, and the saves that have ended since the look before.
class SavesWatch {
 public:
  void look(std::vector<SaveInFlight> found) {
    const auto now = WatchedSave::Clock::now();
    std::map<std::string, WatchedSave> current;
    for (SaveInFlight& save : found) {
      const std::string key = save.directory.string() + '\0' + to_hex(save.save_id);
      auto before = saves_.extract(key);
      if (before.empty()) {
        current.emplace(key, WatchedSave(std::move(save), now));
      } else {
        before.mapped().look(std::move(save), now);
        current.insert(std::move(before));
      }
    }
    for (auto& [key, save] : saves_) {
      const bool is_committed = is_in_place(save.save());
      has_failed_ |= !is_committed;
      ended_.push_back({std::move(save), is_committed});
    }
    saves_ = std::move(current);
  }

  std::vector<EndedSave> take_ended() { return std::exchange(ended_, {}); }
  bool has_failed() const { return has_failed_ || std::any_of(saves_.begin(), saves_.end(), is_dead); }
  bool is_idle() const { return std::all_of(saves_.begin(), saves_.end(), is_dead); }

  std::map<std::string, std::string> lines(std::size_t columns) const {
    std::map<std::string, std::string> lines;
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
    for (const EndedSave& end : ended) {
      json.begin_object();
      json.key("directory").text(end.watched.save().directory.string());
      json.key("save_id").text(to_hex(end.watched.save().save_id));
      json.key("is_committed").boolean(end.is_committed);
      json.end_object();
    }
    json.end_array();
    json.end_object();
    return std::move(json).take();
  }

 private:
  static bool is_dead(const std::pair<const std::string, WatchedSave>& entry) {
    return entry.second.save().is_leftover;
  }

  std::map<std::string, WatchedSave> saves_;
  std::vector<EndedSave> ended_;
  bool has_failed_ = false;
};

std::string line_of(const EndedSave& end) {
  const std::string name = printable(end.watched.save().directory.filename().string());
  if (!end.is_committed) return name + "  ended, and is not the checkpoint in place";
  return fmt::format("{}  committed, {}, watched for {:.1f} s", name,
                     byte_text(progress_of_all(end.watched.save()).bytes_total), end.watched.seconds());
}

void show(SavesWatch& watch, LiveLines& lines, bool as_json) {
  const std::vector<EndedSave> ended = watch.take_ended();
  if (as_json) return print_at_once(watch.json(ended));
  std::vector<std::string> lasting;
  lasting.reserve(ended.size());
  for (const EndedSave& end : ended) lasting.push_back(line_of(end));
  lines.show(lasting, watch.lines(lines.columns()));
}

// Until the next look. False after a signal.
bool wait_for_next_look(milliseconds interval) {
  constexpr milliseconds kPoll{50};
  const auto end = WatchedSave::Clock::now() + interval;
  while (EndingSignals::caught() == 0 && WatchedSave::Clock::now() < end) {
    std::this_thread::sleep_for(std::min(kPoll, interval));
  }
  return EndingSignals::caught() == 0;
}

}  // namespace

Outcome watch(const std::filesystem::path& root, const WatchOptions& options) {
  const EndingSignals signals;
  LiveLines lines("no save is in flight");
  SavesWatch watch;
  for (bool is_first = true;; is_first = false) {
    Result<std::vector<SaveInFlight>> saves = saves_in_flight(root);
    if (!saves && is_first) return {{}, message_of(saves.error()), ExitCode::kUnreadable};
    if (saves) {
      watch.look(*std::move(saves));
      show(watch, lines, options.json);
      if (options.until_idle && watch.is_idle()) break;
    } else {
      std::fputs(message_of(saves.error()).c_str(), stderr);
    }
    if (std::ferror(stdout) != 0) return {};  // main reports it
    if (!wait_for_next_look(options.interval)) return {{}, {}, ExitCode::kOk, EndingSignals::caught()};
  }
  return {{}, {}, watch.has_failed() ? ExitCode::kCheckFailed : ExitCode::kOk};
}

}  // namespace cairn::cli

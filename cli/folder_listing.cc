#include "folder_listing.h"

#include <cairn/bucket_url.h>
#include <cairn/catalog.h>
#include <cairn/checkpoint.h>
#include <cairn/latest.h>
#include <cairn/retention.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "byte_size.h"
#include "catalog_text.h"
#include "json_writer.h"
#include "listing.h"
#include "natural_order.h"
#include "notes_text.h"
#include "printable.h"

namespace cairn::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::system_clock;

struct Entry {
  fs::path directory;
  std::string_view state;  // "complete", "incomplete", "unreadable"
  std::string text;        // contents, or the problem
  std::optional<Clock::time_point> time = {};
  std::optional<std::uint64_t> bytes = {};
  std::optional<std::string> save_id = {};
  std::optional<std::uint64_t> keys = {};
  std::string notes = {};
  std::optional<std::string> reason = {};  // of an incomplete or unreadable checkpoint
  bool is_newest = false;
  std::optional<std::string> pin_note = {};  // of a pinned checkpoint
};

const fs::path kMetadata(kMetadataName);
const fs::path kItemMetadata("metadata.pkl");       // of torch_checkpointing
const fs::path kRemovedMetadata(".cairn-removed");  // while a checkpoint is being removed
constexpr std::size_t kPinNoteMax = 60;             // bytes of a note in a line

bool is_data_file(const std::string& name) { return name.ends_with(".distcp"); }
bool is_private_folder(const std::string& name) { return name.starts_with(".cairn-"); }

// Calls `visit` with each entry until `visit` returns false. Returns the error if the directory can't be read.
template <typename Visit>
std::error_code for_each_in(const fs::path& directory, const Visit& visit) {
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    if (!visit(*entry)) break;
  }
  return error;
}

// Whether a save began in the directory: data files, or the private folder of a save.
bool has_pieces(const fs::path& directory) {
  bool found = false;
  for_each_in(directory, [&](const fs::directory_entry& entry) {
    const std::string name = entry.path().filename().string();
    found = is_data_file(name) || is_private_folder(name);
    return !found;
  });
  return found;
}

// The file's size; zero for a link and for a file that is gone.
std::uint64_t bytes_of(const fs::directory_entry& entry) {
  std::error_code error;
  if (!fs::is_regular_file(entry.symlink_status(error))) return 0;
  const std::uintmax_t bytes = entry.file_size(error);
  return error ? 0 : bytes;
}

// Bytes of the data files in the directory and in the private folders of saves.
std::uint64_t bytes_of_pieces(const fs::path& directory) {
  std::uint64_t bytes = 0;
  for_each_in(directory, [&](const fs::directory_entry& entry) {
    const std::string name = entry.path().filename().string();
    if (is_data_file(name)) bytes += bytes_of(entry);
    if (!is_private_folder(name)) return true;
    for_each_in(entry.path(), [&](const fs::directory_entry& inner) {
      if (is_data_file(inner.path().filename().string())) bytes += bytes_of(inner);
      return true;
    });
    return true;
  });
  return bytes;
}

std::optional<Clock::time_point> time_of(const fs::path& path) {
  std::error_code error;
  const fs::file_time_type time = fs::last_write_time(path, error);
  if (error) return std::nullopt;
  return std::chrono::time_point_cast<Clock::duration>(std::chrono::file_clock::to_sys(time));
}

// In a bucket the library tells the time.
std::optional<Clock::time_point> time_of(const ListedCheckpoint& listed) {
  if (!is_bucket_url(listed.directory)) {
    const bool is_model = listed.format == CheckpointFormat::kSafetensors;
    return time_of(is_model ? listed.directory : listed.directory / kMetadata);
  }
  if (!listed.modified_at) return std::nullopt;
  return Clock::time_point(
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(*listed.modified_at)));
}

// Bytes of `.metadata` and the data files.
std::uint64_t bytes_of_files(const Checkpoint& checkpoint, const fs::path& directory) {
  const bool is_in_bucket = is_bucket_url(directory);
  std::uint64_t bytes = is_in_bucket ? 0 : bytes_of(fs::directory_entry(directory / kMetadata));
  if (is_in_bucket) {
    const Result<std::uint64_t> size = checkpoint.file_bytes(kMetadataName);
    if (size) bytes += *size;
  }
  for (const std::string& file : checkpoint.catalog().files) {
    const Result<std::uint64_t> size = checkpoint.file_bytes(file);
    if (size) bytes += *size;
  }
  return bytes;
}

std::string text_of_incomplete(const Error& reason) {
  const std::string file = printable(reason.file().value_or(""));
  if (reason.code() == ErrorCode::kNotFound) return "incomplete: no '" + file + "'";
  if (!reason.actual() || !reason.expected()) return "incomplete: " + error_text(reason);
  return fmt::format("incomplete: '{}' has {}, expected {}", file, printable(*reason.actual()),
                     printable(*reason.expected()));
}

Entry entry_without_metadata(const fs::path& directory) {
  Entry entry{directory, "incomplete", "incomplete: no .metadata", time_of(directory), bytes_of_pieces(directory)};
  entry.reason = "no .metadata";
  std::error_code ignored;
  if (fs::exists(fs::symlink_status(directory / kRemovedMetadata, ignored))) {
    entry.reason = "its removal has begun; 'cairn prune' finishes an interrupted removal";
    entry.text = "incomplete: " + *entry.reason;
  }
  return entry;
}

// An unreadable pin protects the checkpoint too, and counts as a pin without a note.
void add_pin(Entry& entry, Outcome& outcome) {
  const Result<std::optional<std::string>> note = read_pin(entry.directory);
  if (note) {
    entry.pin_note = *note;
    return;
  }
  if (entry.state == "unreadable") return;  // most likely for the same reason, which is told
  entry.pin_note = std::string();
  outcome.messages +=
      message_of(Error(note.error()).while_doing("reading the pin of '" + entry.directory.string() + "'"));
  outcome.exit_code = ExitCode::kUnreadable;
}

Entry unreadable(Entry entry, const Error& error, Outcome& outcome) {
  entry.state = "unreadable";  // not the text of `entry`, which moves
  entry.text = "unreadable";
  entry.bytes = bytes_of_pieces(entry.directory);
  entry.reason = error.what();
  outcome.messages += message_of(error);
  outcome.exit_code = ExitCode::kUnreadable;
  return entry;
}

Entry entry_of(const ListedCheckpoint& listed, Outcome& outcome) {
  Entry entry{listed.directory, "complete", {}};
  entry.time = time_of(listed);
  entry.is_newest = listed.is_newest;
  if (listed.state == ListedCheckpoint::State::kUnreadable) {
    return unreadable(
        std::move(entry),
        Error(*listed.reason).while_doing("reading the checkpoint in '" + listed.directory.string() + "'"), outcome);
  }
  const Result<Checkpoint> checkpoint = open(listed.directory);
  if (!checkpoint) return unreadable(std::move(entry), checkpoint.error(), outcome);
  const ShownNotes notes = notes_of(*checkpoint, outcome);
  entry.notes = notes.json;
  entry.text = summary_of(checkpoint->catalog());
  if (const std::string metrics = metrics_text(notes); !metrics.empty()) entry.text += "  " + metrics;
  entry.keys = checkpoint->catalog().keys.size();
  entry.bytes = bytes_of_files(*checkpoint, listed.directory);
  if (const auto id = checkpoint->save_id()) entry.save_id = to_hex(*id);
  if (!listed.reason) return entry;
  entry.state = "incomplete";
  entry.text = text_of_incomplete(*listed.reason);
  entry.reason = listed.reason->what();
  return entry;
}

// A link to the newest checkpoint is marked as newest too.
void mark_links_to_newest(std::vector<Entry>& entries) {
  if (!entries.empty() && is_bucket_url(entries.front().directory)) return;  // no links
  const auto newest = std::find_if(entries.begin(), entries.end(), [](const Entry& entry) { return entry.is_newest; });
  if (newest == entries.end()) return;
  const fs::path directory = newest->directory;
  for (Entry& entry : entries) {
    std::error_code error;
    entry.is_newest = fs::equivalent(entry.directory, directory, error) && !error;
  }
}

// Local time: "2026-01-31 23:59:59".
std::string time_text(const std::optional<Clock::time_point>& time) {
  if (!time) return "-";
  const std::time_t seconds = Clock::to_time_t(*time);
  std::tm local{};
  std::array<char, 64> text{};
  if (::localtime_r(&seconds, &local) == nullptr) return "-";
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &local)};
}

// "  pinned: baseline of the paper"; empty without a pin. A long note is cut, not within a character of UTF-8.
std::string pin_text(const Entry& entry) {
  if (!entry.pin_note) return {};
  std::string_view note = *entry.pin_note;
  if (note.empty()) return "  pinned";
  if (note.size() <= kPinNoteMax) return "  pinned: " + printable(note);
  note = note.substr(0, kPinNoteMax + 1);
  while (!note.empty() && (static_cast<unsigned char>(note.back()) & 0xc0U) == 0x80U) note.remove_suffix(1);
  if (!note.empty()) note.remove_suffix(1);
  return "  pinned: " + printable(note) + "...";
}

std::string text_of(const std::vector<Entry>& entries) {
  std::vector<std::string> names;
  std::size_t width = 0;
  for (const Entry& entry : entries) {
    names.push_back(printable(entry.directory.filename().string()));
    width = std::max(width, std::min(names.back().size(), kNameColumnMax));
  }
  std::string text;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Entry& entry = entries[i];
    fmt::format_to(std::back_inserter(text), "{:<{}}  {:<19}  {:>10}  {}{}{}\n", names[i], width, time_text(entry.time),
                   entry.bytes ? byte_text(*entry.bytes) : "-", entry.text, pin_text(entry),
                   entry.is_newest ? "  <- newest" : "");
  }
  return text;
}

void write_entry(JsonWriter& json, const Entry& entry) {
  using std::chrono::milliseconds;
  json.begin_object();
  json.key("name").text(entry.directory.filename().string());
  json.key("directory").text(entry.directory.string());
  json.key("state").text(entry.state);
  json.key("is_newest").boolean(entry.is_newest);
  json.key("modified_unix_ms");
  if (entry.time) {
    json.number(std::int64_t{std::chrono::duration_cast<milliseconds>(entry.time->time_since_epoch()).count()});
  } else {
    json.null();
  }
  json.key("bytes").number_or_null(entry.bytes);
  json.key("keys").number_or_null(entry.keys);
  json.key("save_id").text_or_null(entry.save_id);
  json.key("notes").json(entry.notes);
  json.key("reason").text_or_null(entry.reason);
  json.key("pinned").boolean(entry.pin_note.has_value());
  json.key("pin_note").text_or_null(entry.pin_note);
  json.end_object();
}

std::string json_of(const std::vector<Entry>& entries, const fs::path& folder) {
  JsonWriter json;
  json.begin_object();
  json.key("directory").text(folder.string());
  json.key("checkpoints").begin_array();
  for (const Entry& entry : entries) write_entry(json, entry);
  json.end_array();
  json.end_object();
  return std::move(json).take();
}

}  // namespace

bool has_safetensors(const fs::path& path) {
  const auto is_safetensors = [](const fs::path& file) {
    return lower_case(file.extension().string()) == ".safetensors";
  };
  std::error_code error;
  if (!fs::is_directory(path, error)) return is_safetensors(path) && fs::exists(path, error);
  bool found = false;
  for_each_in(path, [&](const fs::directory_entry& entry) {
    found = is_safetensors(entry.path());
    return !found;
  });
  return found;
}

bool has_metadata(const fs::path& directory) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(directory / kMetadata, ignored));
}

bool has_item_metadata(const fs::path& directory) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(directory / kItemMetadata, ignored));
}

Outcome list_folder(const fs::path& folder, bool json) {
  std::vector<fs::path> unfinished;  // none in a bucket: an upload shows nothing
  const bool is_in_bucket = is_bucket_url(folder);
  const std::error_code error =
      is_in_bucket ? std::error_code() : for_each_in(folder, [&](const fs::directory_entry& entry) {
        std::error_code ignored;
        const bool is_folder = entry.is_directory(ignored) && !is_private_folder(entry.path().filename().string());
        if (is_folder && !has_metadata(entry.path()) && has_pieces(entry.path())) unfinished.push_back(entry.path());
        return true;
      });
  const auto failed = [&folder](Error problem) {
    Error whole = std::move(problem).while_doing("listing '" + folder.string() + "'");
    return Outcome{{}, message_of(whole), ExitCode::kUnreadable};
  };
  // open() names the checkpoints beside a missing directory.
  if (error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory) {
    return unopened(open(folder).error(), folder);
  }
  if (error) return failed(Error::from_errno(error.value(), "reading the directory failed"));
  const Result<std::vector<ListedCheckpoint>> listed = checkpoints(folder);
  if (!listed && is_in_bucket && listed.error().code() == ErrorCode::kNotFound) {
    return unopened(open(folder).error(), folder);
  }
  if (!listed) return failed(listed.error());
  Outcome outcome;
  std::vector<Entry> entries;
  for (const ListedCheckpoint& checkpoint : *listed) {
    entries.push_back(entry_of(checkpoint, outcome));
    add_pin(entries.back(), outcome);
  }
  for (const fs::path& directory : unfinished) {
    const bool is_model = std::any_of(listed->begin(), listed->end(), [&](const ListedCheckpoint& checkpoint) {
      return checkpoint.directory.filename() == directory.filename();
    });
    if (!is_model) entries.push_back(entry_without_metadata(directory));
  }
  if (entries.empty()) return failed(Error(ErrorCode::kNotFound, "neither a checkpoint nor a folder of checkpoints"));
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return natural_less(a.directory.filename().native(), b.directory.filename().native());
  });
  mark_links_to_newest(entries);
  outcome.data = json ? json_of(entries, folder) : text_of(entries);
  return outcome;
}

}  // namespace cairn::cli

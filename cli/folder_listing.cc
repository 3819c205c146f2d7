#include "folder_listing.h"

#include <cairn/checkpoint.h>
#include <cairn/latest.h>
#include <cairn/metadata_name.h>
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

#include "catalog_text.h"
#include "json_writer.h"
#include "listing.h"
#include "natural_order.h"
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
  bool is_newest = false;
};

const fs::path kMetadata(kMetadataName);

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

// Sets the bytes of `.metadata` and its data files. For an incomplete checkpoint, names the first missing file.
void look_at_files(const Checkpoint& checkpoint, Entry& entry) {
  std::uint64_t bytes = bytes_of(fs::directory_entry(entry.directory / kMetadata));
  for (const std::string& file : checkpoint.catalog().files) {
    const Result<std::uint64_t> size = checkpoint.file_bytes(file);
    if (size) {
      bytes += *size;
    } else if (size.error().code() == ErrorCode::kNotFound && entry.state == "complete") {
      entry.state = "incomplete";
      entry.text = "incomplete: no '" + printable(file) + "'";
    }
  }
  entry.bytes = bytes;
}

Entry entry_of(const fs::path& directory, Outcome& outcome) {
  Entry entry{directory, "incomplete", "incomplete: no .metadata"};
  if (!has_metadata(directory)) {
    entry.time = time_of(directory);
    entry.bytes = bytes_of_pieces(directory);
    return entry;
  }
  entry.time = time_of(directory / kMetadata);
  const Result<Checkpoint> checkpoint = open(directory);
  if (!checkpoint) {
    entry.state = entry.text = "unreadable";
    entry.bytes = bytes_of_pieces(directory);
    outcome.messages += message_of(checkpoint.error());
    outcome.exit_code = ExitCode::kUnreadable;
    return entry;
  }
  entry.state = "complete";
  entry.text = summary_of(checkpoint->catalog());
  entry.keys = checkpoint->catalog().keys.size();
  if (const auto id = checkpoint->save_id()) entry.save_id = to_hex(*id);
  look_at_files(*checkpoint, entry);
  return entry;
}

// A link to the newest checkpoint is marked as newest too.
void mark_newest(const fs::path& folder, std::vector<Entry>& entries) {
  const Result<std::optional<fs::path>> newest = latest(folder);
  if (!newest || !*newest) return;
  for (Entry& entry : entries) {
    std::error_code error;
    entry.is_newest = fs::equivalent(entry.directory, **newest, error) && !error;
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
    fmt::format_to(std::back_inserter(text), "{:<{}}  {:<19}  {:>10}  {}{}\n", names[i], width, time_text(entry.time),
                   entry.bytes ? byte_text(*entry.bytes) : "-", entry.text, entry.is_newest ? "  <- newest" : "");
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
  const auto is_safetensors = [](const fs::path& file) { return file.extension() == ".safetensors"; };
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

Outcome list_folder(const fs::path& folder, bool json) {
  std::vector<fs::path> found;
  const std::error_code error = for_each_in(folder, [&](const fs::directory_entry& entry) {
    std::error_code ignored;
    const bool is_checkpoint = entry.is_directory(ignored) && !is_private_folder(entry.path().filename().string()) &&
                               (has_metadata(entry.path()) || has_pieces(entry.path()));
    if (is_checkpoint) found.push_back(entry.path());
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
  if (found.empty()) return failed(Error(ErrorCode::kNotFound, "neither a checkpoint nor a folder of checkpoints"));
  std::sort(found.begin(), found.end(), [](const fs::path& a, const fs::path& b) {
    return natural_less(a.filename().native(), b.filename().native());
  });
  Outcome outcome;
  std::vector<Entry> entries;
  entries.reserve(found.size());
  for (const fs::path& directory : found) entries.push_back(entry_of(directory, outcome));
  mark_newest(folder, entries);
  outcome.data = json ? json_of(entries, folder) : text_of(entries);
  return outcome;
}

}  // namespace cairn::cli

#include <cairn/latest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "storage/posix/posix_storage.h"
#include "transfer/backoff.h"
#include "transfer/commit.h"
#include "transfer/lease.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using storage::PosixStorage;

// `root` and the directories in it. One that can't be looked at is none.
std::vector<fs::path> directories_of(const fs::path& root) {
  std::vector<fs::path> found{root};
  std::error_code error;
  for (fs::directory_iterator entry(root, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    const bool is_private = entry->path().filename().string().starts_with(transfer::kFolderPrefix);
    if (!is_private && entry->is_directory(ignored)) found.push_back(entry->path());
  }
  return found;
}

bool has_save_in_flight(const fs::path& directory) {
  const auto opened = PosixStorage::open_directory(directory);
  if (!opened) return false;
  const storage::Storage& storage = **opened;
  const auto files = storage.list();
  return files && std::any_of(files->begin(), files->end(), [&](const storage::ListedFile& file) {
           if (!file.is_folder || !transfer::save_id_of_folder(file.name)) return false;
           const Result<bool> run_out =
               transfer::lease_has_run_out(storage, file.name, transfer::StorageClock::of_this_host());
           return run_out && !*run_out;
         });
}

Result<void> wait_for_saves(const fs::path& root, const LatestOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  for (transfer::Backoff backoff; std::chrono::steady_clock::now() - start < options.wait; backoff.pause()) {
    if (options.interrupted && options.interrupted()) {
      return Error(ErrorCode::kCancelled, "interrupted while waiting for saves in flight");
    }
    const std::vector<fs::path> directories = directories_of(root);
    if (std::none_of(directories.begin(), directories.end(), has_save_in_flight)) break;
  }
  return {};
}

// A checkpoint that may be the newest.
struct Candidate {
  fs::path directory;
  std::string metadata_name;
  fs::file_time_type time;
  std::uint64_t save_number = 0;
  std::vector<manifest::CommitRecord::File> files;

  bool is_newer_than(const Candidate& other) const {
    return std::tie(time, save_number) > std::tie(other.time, other.save_number);
  }
};

void add_candidate(const fs::path& directory, const std::string& metadata_name, std::vector<Candidate>& candidates) {
  std::error_code error;
  const fs::file_time_type time = fs::last_write_time(directory / metadata_name, error);
  if (error) return;
  const auto storage = PosixStorage::open_directory(directory);
  if (!storage) return;
  auto metadata = transfer::read_metadata_in_place(**storage, metadata_name);
  if (!metadata || !metadata->present) return;
  Candidate candidate{directory, metadata_name, time, 0, {}};
  if (metadata->record) {
    candidate.save_number = metadata->record->save_number;
    candidate.files = std::move(metadata->record->files);
  }
  candidates.push_back(std::move(candidate));
}

bool is_whole(const Candidate& candidate) {
  return std::all_of(candidate.files.begin(), candidate.files.end(), [&](const auto& file) {
    std::error_code error;
    const std::uintmax_t size = fs::file_size(candidate.directory / file.name, error);
    return !error && size == file.size;
  });
}

}  // namespace

Result<std::optional<fs::path>> latest(const fs::path& root, const LatestOptions& options) {
  CAIRN_TRY(wait_for_saves(root, options));
  std::vector<Candidate> candidates;
  for (const fs::path& directory : directories_of(root)) {
    add_candidate(directory, std::string(transfer::kMetadataName), candidates);
    if (!options.rank) continue;
    add_candidate(directory, "__" + std::to_string(*options.rank) + std::string(transfer::kMetadataName), candidates);
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.is_newer_than(b); });
  const auto newest = std::find_if(candidates.begin(), candidates.end(), is_whole);
  return newest == candidates.end() ? std::optional<fs::path>() : std::optional(newest->directory);
}

}  // namespace cairn

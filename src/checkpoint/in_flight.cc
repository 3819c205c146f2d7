#include <cairn/bucket_url.h>
#include <cairn/latest.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <memory>
#include <set>
#include <system_error>
#include <utility>

#include "checkpoint/checkpoint_directories.h"
#include "commit/lease.h"
#include "commit/meeting/save_marks.h"
#include "commit/model/model_in_place.h"
#include "storage/open_directory.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;

using State = SaveInFlightWriter::State;
using commit::kCommittedName;

State state_of(const os::ProcessIdentity& process) {
  switch (process.state()) {
    case os::ProcessIdentity::State::kAlive: return State::kAlive;
    case os::ProcessIdentity::State::kDead: return State::kDead;
    case os::ProcessIdentity::State::kElsewhere: return State::kUnknown;
  }
  return State::kUnknown;
}

// Nullopt if the lease is missing.
std::optional<SaveInFlightWriter> writer_of(const storage::Storage& storage, const std::string& lease,
                                            std::optional<std::uint32_t> rank, SaveInFlight& save) {
  const Result<double> touched_at = storage.touched_at(lease);
  const Result<double> now = commit::StorageClock::without_change(storage).now();
  if (!touched_at || !now) return std::nullopt;
  SaveInFlightWriter writer;
  writer.rank = rank;
  writer.seconds_since_sign = std::max(*now - *touched_at, 0.0);  // the storage's clock may be ahead of `now`
  const auto holder = commit::read_lease(storage, lease);
  writer.is_readable = holder && *holder;
  if (!writer.is_readable) return writer;
  writer.host = (*holder)->process.host;
  writer.pid = (*holder)->process.pid;
  writer.state = state_of((*holder)->process);
  if (const auto& report = (*holder)->progress) {
    writer.progress = {report->phase, report->bytes_written, report->bytes_total};
    if (report->pending) {
      writer.pending_call = report->pending->what;
      writer.seconds_without_progress = std::chrono::duration<double>(report->pending->age).count();
    }
  }
  save.job_id = (*holder)->identity.job_id;
  save.save_number = (*holder)->identity.save_number;
  return writer;
}

// Nullopt if the private folder is gone or can't be listed. A folder of a different user (EACCES) gives a save that is
// not readable.
std::optional<SaveInFlight> look_at(storage::Storage& storage, const SaveId& save_id, commit::SaveForm form) {
  SaveInFlight save;
  save.save_id = save_id;
  const commit::SaveMarks marks(storage, save_id, form);
  Result<commit::SaveMarks::Seen> seen = marks.look();
  if (!seen && seen.error().error_number() != EACCES) return std::nullopt;
  if (!seen) {
    save.is_readable = false;
    return save;
  }
  const auto add = [&](const std::string& name, std::optional<std::uint32_t> rank) {
    if (auto writer = writer_of(storage, marks.path_of(name), rank, save)) save.writers.push_back(*std::move(writer));
  };
  add(std::string(commit::kLeaseName), std::nullopt);
  for (const std::uint32_t rank : seen->leases) add(commit::rank_lease_name(rank), rank);
  for (auto& [rank, failure] : seen->failures) save.failures.push_back(std::move(failure));
  if (seen->decision) {
    save.decision = seen->decision->failure ? SaveInFlight::Decision::kFailed : SaveInFlight::Decision::kCommitted;
  }
  // Of a model the file has another content (commit/model/model_in_place.h).
  const bool is_committed_model = form == commit::SaveForm::kModel && storage.touched_at(marks.path_of(kCommittedName));
  if (is_committed_model) save.decision = SaveInFlight::Decision::kCommitted;
  const auto clock = commit::StorageClock::of_this_host();  // the storage's clock would touch a file
  const Result<bool> run_out = commit::lease_has_run_out(storage, marks.folder(), clock);
  save.is_leftover = run_out && *run_out;
  return save;
}

Result<std::vector<SaveInFlight>> saves_in(const fs::path& directory) {
  CAIRN_TRY_ASSIGN(const std::unique_ptr<storage::Storage> storage, storage::open_directory(directory));
  CAIRN_TRY_ASSIGN(const std::vector<storage::ListedFile> files, storage->list());
  std::vector<SaveInFlight> saves;
  for (const storage::ListedFile& file : files) {
    for (const commit::SaveForm form : {commit::SaveForm::kCheckpoint, commit::SaveForm::kModel}) {
      const std::optional<SaveId> save_id = file.is_folder ? commit::save_id_of_folder(file.name, form) : std::nullopt;
      auto save = save_id ? look_at(*storage, *save_id, form) : std::nullopt;
      if (!save) continue;
      save->directory = directory;
      saves.push_back(*std::move(save));
    }
  }
  std::stable_sort(saves.begin(), saves.end(),
                   [](const SaveInFlight& a, const SaveInFlight& b) { return a.save_number < b.save_number; });
  return saves;
}

// Of saves of whole directories. A new directory without a private folder has no writer yet, or no more.
std::vector<SaveInFlight> saves_in_new_directories(const fs::path& root) {
  std::vector<SaveInFlight> saves;
  for (const checkpointer::PlacedNewDirectory& placed : checkpointer::placed_new_directories(root)) {
    const auto storage = storage::open_directory(placed.path());
    if (!storage) continue;
    auto save = look_at(**storage, placed.directory.save_id, commit::SaveForm::kDirectory);
    if (!save) continue;
    save->directory = placed.checkpoint();
    saves.push_back(*std::move(save));
  }
  return saves;
}

// `root` first, then the directories in `root` by name. Of a directory and the links to that directory only the
// directory is listed.
Result<std::vector<fs::path>> directories_below(const fs::path& root) {
  CAIRN_TRY_ASSIGN(auto found, checkpointer::checkpoint_directories(root));
  if (!found) return Error(ErrorCode::kNotFound, "no such directory").file(root.string());
  std::sort(found->begin() + 1, found->end());
  if (is_bucket_url(root)) return *std::move(found);  // a bucket has no links
  std::error_code ignored;
  std::stable_partition(found->begin() + 1, found->end(),
                        [&](const fs::path& path) { return !fs::is_symlink(fs::symlink_status(path, ignored)); });
  std::set<fs::path> real_paths;
  std::vector<fs::path> directories;
  for (fs::path& path : *found) {
    std::error_code error;
    const fs::path real = fs::canonical(path, error);
    if (!error && real_paths.insert(real).second) directories.push_back(std::move(path));
  }
  return directories;
}

}  // namespace

Result<std::vector<SaveInFlight>> saves_in_flight(const fs::path& root) {
  std::vector<SaveInFlight> whole = saves_in_new_directories(root);
  auto listed = saves_in(root);
  const bool is_new = !listed && listed.error().code() == ErrorCode::kNotFound && !whole.empty();
  if (is_new) return whole;  // the first save of a directory
  CAIRN_TRY_ASSIGN(std::vector<SaveInFlight> saves, std::move(listed));
  CAIRN_TRY_ASSIGN(const std::vector<fs::path> directories, directories_below(root));
  for (const fs::path& directory : directories) {
    if (directory == root) continue;
    // A directory that was removed meanwhile, or that the user may not enter, has no saves to show.
    auto inside = saves_in(directory);
    if (inside) std::move(inside->begin(), inside->end(), std::back_inserter(saves));
  }
  std::erase_if(whole, [&saves](const SaveInFlight& save) {  // committed since the look at the new directories
    return std::ranges::any_of(saves, [&save](const SaveInFlight& other) { return other.save_id == save.save_id; });
  });
  std::move(whole.begin(), whole.end(), std::back_inserter(saves));
  return saves;
}

}  // namespace cairn

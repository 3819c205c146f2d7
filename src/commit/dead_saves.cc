// 1. Find the private folders whose leases have run out by this host's clock. Without any, nothing is locked or
//    touched.
// 2. Take the directory's lock, and sync the directory: a process may have died between its commit and the sync, and a
//    power cut could bring the old checkpoint back, which needs the files that the next step removes.
// 3. Of each save of step 1, judge the leases again by the clock of the storage, and remove the save.
#include "commit/dead_saves.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "commit/leftovers.h"
#include "commit/model/model_leftovers.h"
#include "commit/private_folder.h"
#include "commit/storage_clock.h"

namespace cairn::commit {
namespace {

struct FoundSave {
  SaveId save_id;
  SaveForm form = SaveForm::kCheckpoint;
};

std::optional<FoundSave> save_of(const storage::ListedFile& file) {
  if (!file.is_folder) return std::nullopt;
  for (const SaveForm form : {SaveForm::kCheckpoint, SaveForm::kModel}) {
    if (const auto save_id = save_id_of_folder(file.name, form)) return FoundSave{*save_id, form};
  }
  return std::nullopt;
}

Result<std::vector<FoundSave>> find_dead(storage::Storage& storage, RemovedSaves& removed) {
  CAIRN_TRY_ASSIGN(const std::vector<storage::ListedFile> files, storage.list());
  std::vector<FoundSave> dead;
  for (const storage::ListedFile& file : files) {
    const std::optional<FoundSave> save = save_of(file);
    if (!save) continue;
    const Result<void> joined = storage.join_folder(file.name);
    if (!joined && joined.error().code() == ErrorCode::kNotFound) continue;  // the save has ended
    if (!joined) {
      if (is_of_other_user(joined.error())) {
        removed.of_other_users.push_back(save->save_id);
      } else {
        removed.problems.emplace_back(joined.error().what());
      }
      continue;
    }
    const Result<bool> run_out = lease_has_run_out(storage, file.name, StorageClock::of_this_host());
    const bool has_ended = save->form == SaveForm::kModel && holds_only_mark_of_one_file(storage, file.name);
    if (has_ended || (run_out && *run_out)) dead.push_back(*save);
    if (!run_out && !has_ended && run_out.error().code() != ErrorCode::kNotFound) {
      removed.problems.emplace_back(run_out.error().what());
    }
  }
  return dead;
}

bool is_gone(const storage::Storage& storage, const std::string& folder) {
  if (!storage.has_rename()) {
    const Result<std::vector<storage::ListedFile>> files = storage.list(folder);
    return files ? files->empty() : files.error().code() == ErrorCode::kNotFound;
  }
  const Result<double> touched_at = storage.touched_at(folder);
  return !touched_at && touched_at.error().code() == ErrorCode::kNotFound;
}

}  // namespace

Result<bool> has_living_save(const storage::Storage& storage, const std::optional<SaveId>& except) {
  CAIRN_TRY_ASSIGN(const std::vector<storage::ListedFile> files, storage.list());
  std::optional<Error> unknown;
  for (const storage::ListedFile& file : files) {
    const std::optional<FoundSave> save = save_of(file);
    if (!save || save->save_id == except) continue;
    const Result<bool> run_out = lease_has_run_out(storage, file.name, StorageClock::of_this_host());
    if (run_out && !*run_out) return true;
    if (!run_out && run_out.error().code() != ErrorCode::kNotFound && !unknown) unknown = run_out.error();
  }
  if (unknown) return *std::move(unknown);
  return false;
}

Result<RemovedSaves> remove_dead_saves(storage::Storage& storage, Removal removal) {
  RemovedSaves removed;
  CAIRN_TRY_ASSIGN(const std::vector<FoundSave> dead, find_dead(storage, removed));  // (1)
  if (dead.empty()) return removed;
  RemovalLog log(storage, removal);
  CAIRN_TRY_ASSIGN(const std::unique_ptr<storage::StorageLock> lock, log.lock());  // (2)
  CAIRN_TRY(log.sync(""));
  for (const FoundSave& save : dead) {  // (3)
    const std::string folder = folder_of(save.save_id, save.form);
    const StorageClock clock =
        removal == Removal::kTry ? StorageClock::of_this_host() : StorageClock::in_folder(storage, folder);
    std::vector<std::string> warnings;
    const Result<void> ended = save.form == SaveForm::kModel ? end_dead_model_save(log, save.save_id, clock, warnings)
                                                             : remove_dead_save(log, save.save_id, clock, warnings);
    if (!ended) warnings.emplace_back(ended.error().what());
    std::vector<RemovedFile> files = log.take();
    const bool is_removed = removal == Removal::kTry ? !files.empty() : is_gone(storage, folder);
    if (is_removed) removed.saves.push_back({save.save_id, std::move(files)});
    std::move(warnings.begin(), warnings.end(), std::back_inserter(removed.problems));
  }
  return removed;
}

}  // namespace cairn::commit

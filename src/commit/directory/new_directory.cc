#include "commit/directory/new_directory.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "commit/directory/directory_in_place.h"
#include "commit/lease.h"
#include "commit/metadata_in_place.h"
#include "commit/private_folder.h"
#include "commit/storage_clock.h"
#include "os/parallel.h"

namespace cairn::commit {
namespace {

// A new directory without a private folder belongs to a save that is just beginning, or holds replaced files that a
// killed save has not removed. The times are those of two clocks.
constexpr double kBeginningSecondsMax = 3600;

// `folder`: the name of a folder of `storage`; empty: the directory of `storage` itself.
Result<bool> has_record_of(const storage::Storage& storage, const std::string& folder, const SaveId& save_id) {
  const std::string record = (folder.empty() ? "" : folder + "/") + std::string(kDirectoryRecordName);
  CAIRN_TRY_ASSIGN(const MetadataInPlace now, read_metadata_in_place(storage, record, WithoutRecord::kLeaveUnknown));
  return now.record && now.record->save_id == save_id;
}

bool has_run_out_in(const storage::Storage& directory, const std::string& folder) {
  const Result<bool> run_out = lease_has_run_out(directory, folder, StorageClock::of_this_host());
  return run_out && *run_out;
}

// `opened`: the new directory. Errors are those of the storage.
Result<bool> is_dead_directory(RemovalLog& parent, RemovalLog& opened, const NewDirectory& directory) {
  const std::string folder = folder_of(directory.save_id);
  const Result<void> joined = opened.join_folder(folder);
  if (joined) {
    CAIRN_TRY_ASSIGN(const bool run_out, lease_has_run_out(opened, folder, StorageClock::of_this_host()));
    if (run_out && opened.tries()) return true;  // the storage's clock would touch a file
    if (run_out) return lease_has_run_out(opened, folder, StorageClock::in_folder(opened, folder));
    // Both calls succeed only for empty folders: the save was killed before it had a lease, or makes both again.
    if (opened.remove_folder(folder)) (void)parent.remove_folder(name_of_new_directory(directory));
    return false;
  }
  if (joined.error().code() != ErrorCode::kNotFound) return joined.error();
  CAIRN_TRY_ASSIGN(const bool is_committed, has_record_of(parent, directory.name, directory.save_id));
  if (is_committed) {  // the save itself may be removing the replaced files
    const Result<bool> run_out = lease_has_run_out(parent, directory.name + "/" + folder, StorageClock::of_this_host());
    return !run_out || *run_out;
  }
  CAIRN_TRY_ASSIGN(const double touched_at, opened.touched_at(""));
  CAIRN_TRY_ASSIGN(const double now, StorageClock::of_this_host().now());
  return now - touched_at > kBeginningSecondsMax;
}

// Removes the files and private folders in `directory`, and the folder, which has the name `name` in `parent`.
void remove_all_files(storage::Storage& parent, const std::string& name, storage::Storage& directory,
                      std::vector<std::string>& warnings) {
  const std::size_t failures = warnings.size();
  const auto note = [&warnings](const Result<void>& removed) {
    if (!removed) warnings.emplace_back(removed.error().what());
  };
  const auto files = directory.list();
  if (!files) {
    warnings.emplace_back(files.error().what());
    return;
  }
  for (const storage::ListedFile& file : *files) {
    const bool is_lock = file.name == storage::kLockName;  // held until the last file is gone
    if (!file.is_folder && !is_lock) note(directory.remove(file.name));
  }
  for (const storage::ListedFile& file : *files) {
    if (!file.is_folder) continue;
    if (std::ranges::count(storage::kExchangeTrialNames, file.name) != 0) {
      if (directory.join_folder(file.name)) note(directory.remove_folder(file.name));
      continue;
    }
    if (!save_id_of_folder(file.name)) {
      warnings.push_back("'" + name + "/" + file.name + "' is a folder, and stays");
      continue;
    }
    if (directory.join_folder(file.name)) remove_private_folder(directory, file.name, warnings);
  }
  if (warnings.size() != failures) return;
  (void)directory.remove(storage::kLockName);
  note(parent.remove_folder(name));
}

// Removes the files that are of a checkpoint in the form of torch_checkpointing. Any other file stays, with a warning.
void remove_replaced_files(storage::Storage& parent, const std::string& name, storage::Storage& opened,
                           std::vector<std::string>& warnings) {
  const Result<DirectoryInPlace> old = look_into_directory(opened, name, RanksInPlace::kSome);
  if (old) return remove_old_directory(parent, name, opened, *old, warnings);
  if (old.error().code() != ErrorCode::kNotFound) warnings.emplace_back(old.error().what());  // else: removed meanwhile
}

// Under the lock of `opened`, which had the name of the new directory, unless another process holds the lock.
void remove_dead_directory(storage::Storage& parent, RemovalLog& opened, const NewDirectory& directory,
                           std::vector<std::string>& warnings) {
  const auto stop = std::make_shared<os::StopFlag>();
  stop->set();  // lock() does not wait
  opened.set_stop(stop);
  const auto lock = opened.lock();
  if (!lock && lock.error().code() == ErrorCode::kCancelled) return;  // held by another process
  const Result<void> synced = lock ? parent.sync("") : Result<void>(lock.error());
  if (!synced) return warnings.emplace_back(synced.error().what()), void();
  const std::string name = name_of_new_directory(directory);
  const Result<bool> is_committed = has_record_of(parent, directory.name, directory.save_id);
  const Result<bool> holds_record = has_record_of(opened, "", directory.save_id);
  if (!is_committed || !holds_record) return;
  if (*is_committed) {
    // With the record, `opened` is the directory in place: the save has exchanged it after it was opened.
    if (!*holds_record) remove_replaced_files(parent, name, opened, warnings);
    return;
  }
  const std::string folder = folder_of(directory.save_id);
  if (!opened.join_folder(folder)) {
    // Of a save that has not begun, or of an old directory, of which a user may have files.
    return remove_replaced_files(parent, name, opened, warnings);
  }
  if (!has_run_out_in(opened, folder)) return;  // it has come back
  // The record first: if the saver was only paused, its commit then fails.
  const std::string sealed = folder + "/" + std::string(kSealedDirectoryRecordName);
  for (const std::string& record : {sealed, std::string(kDirectoryRecordName)}) {
    if (const auto removed = opened.remove(record); !removed && removed.error().code() != ErrorCode::kNotFound) {
      return warnings.emplace_back(removed.error().what()), void();
    }
  }
  remove_all_files(parent, name, opened, warnings);
}

}  // namespace

std::string name_of_new_directory(const NewDirectory& directory) {
  return std::string(kNewDirectoryPrefix) + to_hex(directory.save_id) + "-" + directory.name;
}

std::optional<NewDirectory> new_directory_of_name(std::string_view name) {
  if (!name.starts_with(kNewDirectoryPrefix)) return std::nullopt;
  name.remove_prefix(kNewDirectoryPrefix.size());
  const std::size_t dash = name.find('-');
  if (dash == std::string_view::npos || dash + 1 == name.size()) return std::nullopt;
  const std::optional<SaveId> save_id = save_id_of_hex(name.substr(0, dash));
  if (!save_id) return std::nullopt;
  return NewDirectory{*save_id, std::string(name.substr(dash + 1))};
}

Result<bool> is_directory_in_place(const storage::Storage& storage, const NewDirectory& directory) {
  CAIRN_TRY_ASSIGN(const std::unique_ptr<storage::Storage> parent, storage.open_parent());
  (void)parent->touched_at("");  // a network file system may remember the old names
  return has_record_of(*parent, directory.name, directory.save_id);
}

void remove_whole_directory(storage::Storage& parent, const std::string& name, std::vector<std::string>& warnings) {
  const auto opened = parent.open_folder(name);
  if (opened) return remove_all_files(parent, name, **opened, warnings);
  if (opened.error().code() != ErrorCode::kNotFound) warnings.emplace_back(opened.error().what());
}

Result<std::vector<NewDirectory>> new_directories_in(const storage::Storage& parent) {
  CAIRN_TRY_ASSIGN(const std::vector<storage::ListedFile> files, parent.list());
  std::vector<NewDirectory> directories;
  for (const storage::ListedFile& file : files) {
    if (!file.is_folder) continue;
    if (auto directory = new_directory_of_name(file.name)) directories.push_back(*std::move(directory));
  }
  std::ranges::sort(directories, {}, &NewDirectory::name);
  return directories;
}

RemovedSaves remove_if_dead(storage::Storage& parent, const NewDirectory& directory, Removal removal) {
  RemovedSaves removed;
  const auto explain = [&](const Error& error) {
    if (is_of_other_user(error)) return removed.of_other_users.push_back(directory.save_id);
    if (error.code() != ErrorCode::kNotFound) removed.problems.emplace_back(error.what());  // else: ended meanwhile
  };
  const std::string name = name_of_new_directory(directory);
  const auto opened = parent.open_folder(name);
  if (!opened) return explain(opened.error()), removed;
  RemovalLog parent_log(parent, removal);
  RemovalLog log(**opened, removal);
  const Result<bool> is_dead = is_dead_directory(parent_log, log, directory);
  if (!is_dead) return explain(is_dead.error()), removed;
  if (!*is_dead) return removed;
  remove_dead_directory(parent_log, log, directory, removed.problems);
  std::vector<RemovedFile> files = log.take();
  const Result<double> left = parent.touched_at(name);
  const bool is_gone = removal == Removal::kDo && !left && left.error().code() == ErrorCode::kNotFound;
  const bool is_removed = is_gone || !files.empty();
  if (is_removed) removed.saves.push_back({directory.save_id, std::move(files)});
  return removed;
}

void remove_dead_directories(storage::Storage& parent, const SaveId& mine, std::vector<std::string>& warnings) {
  const auto directories = new_directories_in(parent);
  if (!directories) return;  // a later save removes the leftovers
  for (const NewDirectory& directory : *directories) {
    if (directory.save_id == mine) continue;
    RemovedSaves removed = remove_if_dead(parent, directory, Removal::kDo);
    std::move(removed.problems.begin(), removed.problems.end(), std::back_inserter(warnings));
  }
}

Result<bool> clean_up_after_directory(storage::Storage& parent, const NewDirectory& directory) {
  CAIRN_TRY_ASSIGN(const bool is_committed, has_record_of(parent, directory.name, directory.save_id));
  CAIRN_TRY(parent.sync());
  std::vector<std::string> ignored;  // the next save removes the rest
  const std::string folder = folder_of(directory.save_id);
  if (const auto left = parent.open_folder(name_of_new_directory(directory))) {
    const bool is_entered = static_cast<bool>((*left)->join_folder(folder));
    RemovalLog log(**left, Removal::kDo);
    if (!is_entered || has_run_out_in(**left, folder)) remove_dead_directory(parent, log, directory, ignored);
  }
  if (!is_committed) return false;
  const auto in_place = parent.open_folder(directory.name);
  if (in_place && (*in_place)->join_folder(folder) && has_run_out_in(**in_place, folder)) {
    remove_private_folder(**in_place, folder, ignored);
  }
  return true;
}

}  // namespace cairn::commit

// The steps are those of a save's commit (commit/save_transaction.cc), of which step 2 and 3 are done:
//
// 1. Make a private folder with a lease: a process that dies leaves a dead save without data files, which the next save
//    and clean() remove.
// 4. Write the new metadata into the folder; sync the file, the folder and the directory.
// 5. a. Keep a copy of the broken file under another name. Look again: no save may be under way, and the lock must be
//       held.
//    b. Rename over the name of the metadata. A reader finds the old file before, and the new file from then on.
//    c. Sync the directory.
// 7. Remove the folder.
#include "repair/metadata_replacement.h"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <system_error>
#include <utility>

#include "commit/dead_saves.h"
#include "commit/job_identity.h"
#include "commit/lease.h"
#include "commit/private_folder.h"

namespace cairn::checkpointer {
namespace {

namespace fs = std::filesystem;

constexpr int kDamagedNamesMax = 100;
constexpr std::string_view kSealedName = "metadata";

// Keeps the broken file under a free name. A repair that was killed may have kept it already.
Result<std::string> keep_broken(storage::Storage& storage, const MetadataReplacement& replacement) {
  const std::string first = replacement.name + ".damaged";
  for (int number = 1; number <= kDamagedNamesMax; ++number) {
    const std::string name = number == 1 ? first : first + "-" + std::to_string(number);
    const Result<void> kept = replacement.old_bytes.empty()
                                  ? storage.publish(replacement.name, name)
                                  : storage.create_whole(name, replacement.old_bytes, Durability::kDurable);
    if (kept) return name;
    if (kept.error().error_number() != EEXIST) return kept.error();
    const auto there = storage::read_small(storage, name, std::max<std::size_t>(replacement.old_bytes.size(), 1));
    if (there && !there->empty() && *there == replacement.old_bytes) return name;
  }
  return Error(ErrorCode::kUnavailable, "too many broken metadata files are kept here: remove some of them")
      .file(first);
}

// Without the time the checkpoint would count as the newest of its run.
void set_time_of_youngest(const MetadataReplacement& replacement, const std::string& name,
                          std::vector<std::string>& warnings) {
  std::optional<fs::file_time_type> youngest;
  std::error_code failure;
  for (const std::string& file : replacement.files) {
    const fs::file_time_type time = fs::last_write_time(replacement.directory / file, failure);
    if (!failure) youngest = std::max(youngest.value_or(time), time);
  }
  if (!youngest) return;
  fs::last_write_time(replacement.directory / name, *youngest, failure);
  if (failure) {
    warnings.push_back(
        "the metadata file has the time of the repair, since its time could not be set: latest() may "
        "take the checkpoint for a newer one (" +
        failure.message() + ")");
  }
}

Result<void> look_again(const storage::Storage& storage, const SaveId& mine, const storage::StorageLock* lock) {
  CAIRN_TRY_ASSIGN(const bool is_saved_into, commit::has_living_save(storage, mine));
  if (is_saved_into) return Error(ErrorCode::kUnavailable, "a save into the directory is under way");
  if (lock == nullptr || lock->is_held()) return {};
  return Error(ErrorCode::kUnavailable, "the lock of the directory was lost; nothing was replaced, repair again");
}

Result<void> commit_in(storage::Storage& storage, const commit::SaveIdentity& identity,
                       const MetadataReplacement& replacement, const storage::StorageLock* lock, Replaced& replaced) {
  const std::string folder = commit::folder_of_save(identity);
  const std::string sealed = folder + "/" + std::string(kSealedName);
  CAIRN_TRY(storage.create_whole(sealed, replacement.bytes, Durability::kDurable));  // (4)
  if (replacement.keeps_time) set_time_of_youngest(replacement, sealed, replaced.warnings);
  CAIRN_TRY(storage.sync(folder));
  CAIRN_TRY(storage.sync());
  CAIRN_TRY(look_again(storage, identity.save_id, lock));  // (5a)
  if (replacement.had_file) {
    CAIRN_TRY_ASSIGN(replaced.damaged_name, keep_broken(storage, replacement));
  }
  CAIRN_TRY(storage.replace(sealed, replacement.name));  // (5b)
  return storage.sync();                                 // (5c)
}

}  // namespace

Result<Replaced> replace_metadata(storage::Storage& storage, const MetadataReplacement& replacement,
                                  const storage::StorageLock* lock) {
  Replaced replaced;
  const commit::SaveIdentity identity = commit::copy_identity(commit::SaveForm::kCheckpoint);
  const std::string folder = commit::folder_of_save(identity);
  Result<void> committed;
  {
    CAIRN_TRY_ASSIGN(const commit::Lease lease, commit::Lease::take_with_folder(storage, identity));  // (1)
    committed = commit_in(storage, identity, replacement, lock, replaced);
  }
  commit::remove_private_folder(storage, folder, replaced.warnings);  // (7)
  if (!committed) return std::move(committed).error();
  return replaced;
}

}  // namespace cairn::checkpointer

// How a save becomes visible in its directory: a reader finds the complete old checkpoint or the complete new
// checkpoint, even if the process is killed or the power fails at any moment. What a commit makes visible, and how, is
// in the strategy: metadata_commit.cc (a DCP checkpoint), bucket/bucket_commit.cc (a DCP checkpoint in a bucket),
// model_commit.cc (a safetensors model). The strategies number their parts of these steps alike.
//
// 1. Claim. Make the private folder `.cairn-<save id>/` with the lease, *then* look at what is in place: of two saves
//    that begin together, at least one sees the other. If the directory holds only unrelated files, the names of a
//    first save are free; otherwise names include the save id, and two saves never share a name.
// 2. Write (data_file/image_writer.cc). New files in the private folder, synced.
// 3. Publish (rank_files.cc). Rename the files to their final names, never replacing a file; sync the directory. No
//    reader takes these files yet.
// 4. Seal. Write the document that names the files in the folder; sync the file, the folder, the directory, and the
//    parent of every directory that was made.
// 5. Commit, under the directory's lock (directory_lock.cc).
//    a. Look again. An earlier save of this job may have committed since step 1; any other change means that this save
//       is superseded. Write the list of the files that the commit replaces into the folder.
//    b. The lock must still be held, and the fence open. Then comes the commit point of the strategy.
//    c. Sync the directory, and look whether the save is in place. Only now is the save durable. If the sync fails, or
//       the answer of the commit point was lost, the save has failed, but nothing is removed: after a power cut either
//       checkpoint may be in place.
// 6. Tell. The caller reports the commit to the ranks (save/save.cc, rank_save.cc). The folder is removed with
//    step 7, or when all ranks have read the decision.
// 7. Clean, still under the lock: otherwise the files of a save with a commit in between would look like a dead save's
//    files. Remove the replaced files, then the folder. A save that was given up during step 5 and has lost the lock
//    removes nothing, as if killed there, and a later save cleans up: other saves may have committed.
#include "commit/save_transaction.h"

#include <algorithm>
#include <exception>

#include "commit/dcp_names.h"

namespace cairn::commit {

Result<std::unique_ptr<SaveTransaction>> SaveTransaction::claim(std::unique_ptr<CommitStrategy> strategy,
                                                                Lease::Progress progress) {
  std::unique_ptr<SaveTransaction> transaction(new SaveTransaction(std::move(strategy)));
  CAIRN_TRY_ASSIGN(transaction->lease_, Lease::take_with_folder(transaction->storage_, transaction->identity_,
                                                                std::move(progress)));  // (1)
  transaction->strategy_->hold(*transaction->lease_);
  CAIRN_TRY_ASSIGN(transaction->fresh_, transaction->strategy_->look(transaction->warnings_));
  return transaction;
}

SaveTransaction::~SaveTransaction() {
  if (committed_) return;
  try {
    withdraw();
  } catch (const std::exception&) {
    // Out of memory: the next save removes the leftovers, as after a kill.
  }
}

Result<void> SaveTransaction::seal(const CommitContent& content, Durability durability) {
  CAIRN_TRY_ASSIGN(const std::vector<CommitStrategy::FolderFile> files, strategy_->sealed_files(content));
  for (const auto& [name, bytes] : files) {
    CAIRN_TRY(storage_.create_whole(folder_ + "/" + std::string(name), bytes, durability));
  }
  CAIRN_TRY(strategy_->sync(folder_, durability));
  return strategy_->sync("", durability);
}

Result<void> SaveTransaction::make_visible(Durability durability) {
  if (fence_ != nullptr) CAIRN_TRY(fence_->begin_decisive_step());
  CAIRN_TRY(strategy_->make_visible(durability, committed_));    // (5b)
  committed_ = true;                                             // visible from here on: never withdrawn
  if (auto synced = strategy_->sync("", durability); !synced) {  // (5c)
    const std::string what = identity_.form == SaveForm::kModel ? "model" : "checkpoint";
    return std::move(synced).error().while_doing("syncing the directory after the commit: the new " + what +
                                                 " is visible, but a power failure may bring the old " + what +
                                                 " back; the files of both are kept");
  }
  return strategy_->confirm();
}

Result<bool> SaveTransaction::commit_under_lock(const CommitContent& content, Durability durability,
                                                const storage::StorageLock* lock) {
  CAIRN_TRY_ASSIGN(const auto replaced, strategy_->look_again(content));  // (5a)
  if (replaced) {
    const Durability list_durability = replaced->must_last ? durability : Durability::kBuffered;
    CAIRN_TRY(storage_.create_whole(folder_ + "/" + std::string(kReplacedName), replaced->text, list_durability));
    CAIRN_TRY(strategy_->sync(folder_, list_durability));
  }
  if (lock != nullptr && !lock->is_held()) {
    return Error(
        ErrorCode::kUnavailable,
        "the lock of the directory was lost before the commit; the files of this save are withdrawn, save again");
  }
  CAIRN_TRY(make_visible(durability));
  const bool is_given_up = fence_ != nullptr && !fence_->note_committed();
  const LockState state = lock == nullptr ? LockState::kNone : lock->is_held() ? LockState::kHeld : LockState::kLost;
  if (state != LockState::kHeld && !strategy_->may_clean_unlocked(is_given_up)) return false;
  CAIRN_TRY(strategy_->clean(state, durability, warnings_));  // (7)
  return true;
}

Result<CommitReport> SaveTransaction::commit(const CommitContent& content, Durability durability) {
  if (content.form != identity_.form) {
    return Error(ErrorCode::kInvalidArgument, identity_.form == SaveForm::kModel
                                                  ? "the save has claimed the directory for a model: commit a model"
                                                  : "the save has claimed the directory for a checkpoint: commit one");
  }
  CAIRN_TRY(seal(content, durability));  // (4)
  bool is_cleaned = false;
  {
    CAIRN_TRY_ASSIGN(const std::unique_ptr<storage::StorageLock> lock, storage_.lock());  // (5)
    CAIRN_TRY_ASSIGN(is_cleaned, commit_under_lock(content, durability, lock.get()));
  }
  CommitReport report{std::move(warnings_)};
  if (keeps_folder_) return report;
  if (is_cleaned) remove_folder(report.warnings);
  lease_.reset();
  return report;
}

void SaveTransaction::remove_folder(std::vector<std::string>& warnings) {
  strategy_->leave_note();
  lease_.reset();
  strategy_->remove_folder(warnings);
}

void SaveTransaction::withdraw() {
  std::vector<std::string> ignored;  // the error that caused the withdrawal is the error to report
  // The lease is removed after the data files: a kill in between leaves no file whose save cannot be recognised as
  // dead.
  remove_private_folder(storage_, folder_, ignored, Keep::kLease);
  if (expects_any_) look_for_files();
  withdraw_files(storage_, expected_, identity_.save_id);
  strategy_->leave_note();
  lease_.reset();
  remove_private_folder(storage_, folder_, ignored);
  // Withdraw again: a late rank may have published a file before the folder was removed. Without the folder no rank can
  // publish any more.
  withdraw_files(storage_, expected_, identity_.save_id);
  strategy_->remove_directory();
}

void SaveTransaction::look_for_files() {
  const auto files = storage_.list();
  if (!files) return;  // the next save removes the leftovers, as after a kill
  const std::string id = to_decimal(identity_.save_id);
  for (const storage::ListedFile& file : *files) {
    // If the names include the save's id, files without the id need not be opened.
    const bool possible = file.name.ends_with(kDataFileSuffix) && (fresh_ || file.name.find(id) != std::string::npos);
    if (possible && file.is_regular) expected_.push_back(file.name);
  }
}

}  // namespace cairn::commit

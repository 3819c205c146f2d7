// The parts of the commit (save_transaction.cc) in which a whole directory differs. Readers of torch_checkpointing open
// files by their names in a directory: a reader sees the old directory or the new directory, because all files change
// in one step. The directory of the storage is the save's new directory, `.cairn-new-<save id>-<name>`
// (new_directory.h); the private folder is in it.
//
// 1. Look. Remove the new directories of dead saves. Look at the directory at the name, and refuse one with a file that
//    is not of its checkpoint (directory_in_place.h). If there is a directory to replace, refuse a file system that
//    can't exchange two directories in one step: a removal before the rename would leave neither checkpoint after a
//    kill.
// 3. Publish the files in the new directory. No reader knows the new directory.
// 4. Seal: `record` in the folder names the files of the save.
// 5. a. Lock the old directory too: two saves of one name have different new directories. Without an old directory the
//       rename decides, which fails if the name is taken. Compare the old directory with that of step 1. An earlier
//       save of this job may have replaced it. The files of step 3 must still be there: a save that took this save for
//       dead removes them under the lock of the new directory.
//    b. Publish the record as `.cairn-record`, and sync the new directory. Rename the new directory; or exchange it
//       with the old directory, which then has the name of the new directory.
//    c. Sync the directory above, before anything is removed. Read the record at the name back.
// 7. Clean: remove the files of step 5a, and their directory. A file that came later stays, with the directory. If the
//    save is killed before, the next save into the directory above finds the new directory's name, and the save's
//    record at the name: the rest is removed then, under the lock of the old directory, and after a sync.
// A save that is withdrawn removes the new directory with all of its files, of all ranks.
#include "commit/directory/directory_commit.h"

#include <algorithm>
#include <cassert>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "commit/bucket/bucket_commit.h"
#include "commit/directory/directory_in_place.h"
#include "commit/directory/new_directory.h"
#include "commit/metadata_in_place.h"
#include "commit/private_folder.h"
#include "commit/storage_clock.h"

namespace cairn::commit {
namespace {

// Ranks that publish while their save is withdrawn.
constexpr int kDirectoryRemovalsMax = 16;
// Saves that replace the directory between a look and the lock.
constexpr int kDirectoryLooksMax = 16;

class DirectoryCommit final : public CommitStrategy {
 public:
  DirectoryCommit(storage::Storage& storage, const SaveIdentity& identity, DirectoryClaimOptions options)
      : CommitStrategy(storage, identity),
        options_(std::move(options)),
        directory_{identity.save_id, options_.name},
        new_name_(name_of_new_directory(directory_)) {}

  Result<bool> look(Warnings& warnings) override {
    CAIRN_TRY_ASSIGN(parent_, storage_.open_parent());
    remove_dead_directories(*parent_, identity_.save_id, warnings);
    CAIRN_TRY_ASSIGN(seen_, look_at_directory(*parent_, options_.name));
    CAIRN_TRY(check_overwrite(seen_));
    if (seen_.is_empty()) return true;
    CAIRN_TRY(seen_.storage->lock());  // a directory that this process may not change is refused now
    CAIRN_TRY_ASSIGN(const bool can_exchange, storage_.can_exchange_folders());
    if (can_exchange) return true;
    return Error(ErrorCode::kUnsupported,
                 "the directory holds a checkpoint, and the file system can't exchange two directories in one step: "
                 "save into a new directory")
        .file(options_.name);
  }

  Result<std::vector<FolderFile>> sealed_files(const CommitContent& content) override {
    CAIRN_TRY_ASSIGN(std::string record, content.render());
    std::vector<FolderFile> files;
    files.push_back({kSealedDirectoryRecordName, std::move(record)});
    return files;
  }

  Result<std::optional<ReplacedList>> look_again(const CommitContent& content) override {
    CAIRN_TRY(lock_old());
    CAIRN_TRY(check_not_superseded(old_));
    CAIRN_TRY(check_overwrite(old_));
    CAIRN_TRY(check_ended(old_));
    CAIRN_TRY(check_published(content.files));
    return std::optional<ReplacedList>();
  }

  Result<void> make_visible(Durability durability, bool& may_be_visible) override {
    CAIRN_TRY(storage_.publish(in_folder(kSealedDirectoryRecordName), std::string(kDirectoryRecordName)));
    CAIRN_TRY(sync("", durability));
    if (lock_ != nullptr && !lock_->is_held()) {
      return Error(
          ErrorCode::kUnavailable,
          "the lock of the old directory was lost before the commit; the files of this save are withdrawn, save "
          "again");
    }
    const bool exchanges = !old_.is_empty();
    Result<void> moved = exchanges ? parent_->exchange_folders(new_name_, options_.name)
                                   : parent_->move_folder(new_name_, options_.name);
    Result<void> settled =
        settle_move(std::move(moved), may_be_visible, "which directory is in place, so the files of both are kept",
                    [this] { return is_in_place(); });
    if (!settled && !may_be_visible) return std::move(settled).error().file(options_.name);
    CAIRN_TRY(std::move(settled));
    may_be_visible = true;
    has_replaced_ = exchanges;
    if (durability != Durability::kDurable) return {};
    if (auto synced = parent_->sync(); !synced) {  // (5c)
      has_replaced_ = false;
      return std::move(synced).error().while_doing(
          "syncing the directory above after the commit: the new directory is visible, but a power failure may bring "
          "the old directory back; the files of both are kept");
    }
    return {};
  }

  Result<void> confirm() override {
    CAIRN_TRY_ASSIGN(const bool in_place, is_in_place());
    if (in_place) return {};
    return Error(ErrorCode::kSuperseded, "another save replaced the directory right after the commit")
        .file(options_.name);
  }

  bool may_clean_unlocked(bool is_given_up) const override { return !is_given_up; }

  Result<void> clean(LockState /*lock*/, Durability /*durability*/, Warnings& warnings) override {
    if (!has_replaced_) return {};
    remove_old_directory(*parent_, new_name_, *old_.storage, old_, warnings);
    return {};
  }

  void remove_directory() override {
    lock_.reset();
    if (!parent_) return;
    // A rank may publish a file between the removal of the files and of the directory.
    Warnings ignored;  // the next save removes the rest
    for (int removals = 0; removals < kDirectoryRemovalsMax; ++removals) {
      const Result<double> there = parent_->touched_at(new_name_);
      if (!there) return;
      remove_whole_directory(*parent_, new_name_, ignored);
    }
  }

 private:
  Result<bool> is_in_place() const { return is_directory_in_place(storage_, directory_); }

  // (5a)
  Result<void> lock_old() {
    for (int looks = 1;; ++looks) {
      CAIRN_TRY_ASSIGN(old_, look_at_directory(*parent_, options_.name));
      if (old_.is_empty()) return {};
      CAIRN_TRY_ASSIGN(lock_, old_.storage->lock());
      CAIRN_TRY_ASSIGN(const DirectoryInPlace now, look_at_directory(*parent_, options_.name));
      if (now.same_as(old_)) return {};
      lock_.reset();  // of a directory that another save has replaced meanwhile
      if (looks == kDirectoryLooksMax) {
        return Error(ErrorCode::kUnavailable, "the directory is replaced again and again: save again")
            .file(options_.name);
      }
    }
  }

  // A save that was killed right after its commit leaves its private folder in the directory.
  Result<void> check_ended(const DirectoryInPlace& now) const {
    for (const std::string& name : now.private_folders) {
      const std::string folder = options_.name + "/" + name;
      const auto left = parent_->list(folder);
      if (left && left->empty()) continue;  // killed during the removal of the folder
      const Result<bool> run_out = lease_has_run_out(*parent_, folder, StorageClock::of_this_host());
      if (run_out ? *run_out : run_out.error().code() == ErrorCode::kNotFound) continue;
      if (!run_out) return run_out.error();
      return Error(ErrorCode::kUnavailable, "another save into the directory has not ended: save again").file(folder);
    }
    return {};
  }

  Result<void> check_overwrite(const DirectoryInPlace& now) const {
    if (now.is_empty() || options_.overwrite) return {};
    // DCP's wording, which callers match.
    return Error(ErrorCode::kInvalidArgument, "Checkpoint already exists and overwrite=False").file(options_.name);
  }

  // (5a)
  Result<void> check_not_superseded(const DirectoryInPlace& now) const {
    if (now.same_as(seen_) || now.storage == nullptr) return {};
    const auto& record = now.record.record;
    if (record && is_earlier_save(record->job_id, record->save_number)) return {};
    return Error(ErrorCode::kSuperseded,
                 "another save or program has changed the directory since this save began; the files of this save are "
                 "withdrawn")
        .file(options_.name);
  }

  const DirectoryClaimOptions options_;
  const NewDirectory directory_;
  const std::string new_name_;
  std::unique_ptr<storage::Storage> parent_;  // the directory above
  DirectoryInPlace seen_;
  DirectoryInPlace old_;                        // at the commit
  std::unique_ptr<storage::StorageLock> lock_;  // of `old_`, from (5a) on; null also if `old_` is empty
  bool has_replaced_ = false;
};

}  // namespace

Result<std::unique_ptr<SaveTransaction>> claim_directory(storage::Storage& storage, const SaveIdentity& identity,
                                                         const DirectoryClaimOptions& options,
                                                         Lease::Progress progress) {
  CAIRN_TRY(refuse_in_bucket(storage, "a directory of files"));
  assert(identity.form == SaveForm::kDirectory);
  CAIRN_TRY(storage::check_name(options.name));
  if (options.name.find('/') != std::string::npos) {
    return Error(ErrorCode::kInvalidArgument, "a name beside the directory, not a path").file(options.name);
  }
  return SaveTransaction::claim(std::make_unique<DirectoryCommit>(storage, identity, options), std::move(progress));
}

}  // namespace cairn::commit

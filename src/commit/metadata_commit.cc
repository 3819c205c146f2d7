// The parts of the commit (save_transaction.cc) in which a DCP checkpoint differs. A reader takes the files that
// `.metadata` names: its rename is the commit point, on any file system, for a first save and for an overwrite alike.
//
// 1. Look: list the directory, and read the `.metadata` in place. A rank that saves alone looks only at its own names,
//    and adds the save to its note (rank_note.h): the directory is not listed.
// 4. Seal: `metadata` in the folder is the pickle and its commit record.
// 5. a. Compare the `.metadata` in place with the `.metadata` of step 1. List the files that the rename will orphan.
//       If none is in place any more, a removal has taken it (checkpoint_removal.cc): the save goes on.
//    b. Rename over `.metadata`.
//    c. Read the save id back.
// 7. Clean (leftovers.cc): remove the files that the replaced `.metadata` named and no metadata in the directory names
//    any more, and the leftovers of dead saves. Under the lock also remove leaked data files, whose save has no folder
//    any more. A rank that saves alone removes only its own files, and finds dead saves by its note.
#include "commit/metadata_commit.h"

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "commit/bucket/bucket_commit.h"
#include "commit/checkpoint_commit.h"
#include "commit/dcp_names.h"
#include "commit/leftovers.h"
#include "commit/rank_note.h"

namespace cairn::commit {
namespace {

constexpr std::string_view kSealedMetadataName = "metadata";
constexpr std::string_view kLockLost =
    "the lock of the directory was lost during the commit: a save of another job may have committed meanwhile, and "
    "been replaced by this save";
constexpr std::string_view kNoLocks =
    "no file locks on this file system: run only one saving job per directory. Two jobs that commit at the same "
    "instant may both report success, and data files may be left behind";

// Whether `name` belongs to a checkpoint or to a save in flight, rather than to the trainer's own files.
bool belongs_to_a_checkpoint(std::string_view name) {
  return name.starts_with(kFolderPrefix) || is_dcp_file_name(name) || name == ".metadata.tmp";
}

class MetadataCommit final : public CheckpointCommit {
 public:
  MetadataCommit(storage::Storage& storage, const SaveIdentity& identity, const ClaimOptions& options)
      : CheckpointCommit(storage, identity, options) {}

  Result<bool> look(Warnings& /*warnings*/) override {
    return options_.alone_as_rank ? look_as_rank(*options_.alone_as_rank) : look_around();
  }

  Result<std::vector<FolderFile>> sealed_files(const CommitContent& content) override {
    CAIRN_TRY_ASSIGN(std::string metadata, content.render());
    std::vector<FolderFile> files;
    files.push_back({kSealedMetadataName, std::move(metadata)});
    return files;
  }

  Result<std::optional<ReplacedList>> look_again(const CommitContent& content) override {
    CAIRN_TRY_ASSIGN(const MetadataInPlace old, read_metadata_in_place(storage_, metadata_name_));
    CAIRN_TRY(check_overwrite(old));
    CAIRN_TRY(check_not_superseded(old));
    files_ = content.files;
    orphans_ = orphaned_files(storage_, metadata_name_, old, files_);
    if (orphans_.empty()) return std::optional<ReplacedList>();
    return std::optional(ReplacedList{encode_replaced_names(orphans_), false});
  }

  Result<void> make_visible(Durability /*durability*/, bool& may_be_visible) override {
    return move_into_place(kSealedMetadataName, metadata_name_, may_be_visible,
                           "which checkpoint is in place, so the files of both are kept",
                           [this] { return is_in_place(); });
  }

  Result<void> confirm() override {
    CAIRN_TRY_ASSIGN(const bool in_place, is_in_place());
    if (in_place) return {};
    return Error(ErrorCode::kSuperseded, "another save replaced the checkpoint right after the commit")
        .file(metadata_name_);
  }

  bool may_clean_unlocked(bool is_given_up) const override { return !is_given_up; }

  Result<void> clean(LockState lock, Durability /*durability*/, Warnings& warnings) override {
    const LeakedFiles leaked = lock == LockState::kHeld ? LeakedFiles::kRemove : LeakedFiles::kKeep;
    const Warnings left = options_.alone_as_rank
                              ? clean_up_as_rank(storage_, identity_.save_id, files_, orphans_, *options_.alone_as_rank)
                              : clean_up(storage_, identity_.save_id, files_, orphans_, leaked);
    warnings.insert(warnings.end(), left.begin(), left.end());
    if (lock == LockState::kLost) warnings.emplace_back(kLockLost);
    // Reported once in a job: the job's saves have numbers from 1 on.
    const bool is_first = identity_.is_copy() || identity_.save_number == 1;
    if (lock == LockState::kNone && is_first) warnings.emplace_back(kNoLocks);
    return {};
  }

  // The note keeps the saves that still have a folder.
  void leave_note() override {
    if (!options_.alone_as_rank) return;
    std::vector<SaveId> saves = read_rank_note(storage_, *options_.alone_as_rank);
    std::erase_if(saves, [this](const SaveId& save) {
      if (save == identity_.save_id) return true;
      const Result<double> touched_at = storage_.touched_at(folder_of(save));
      return !touched_at && touched_at.error().code() == ErrorCode::kNotFound;
    });
    write_rank_note(storage_, *options_.alone_as_rank, saves, folder_);
  }

 private:
  // Looks at the names of this rank only: the directory may hold the files of very many ranks.
  Result<bool> look_as_rank(std::uint32_t rank) {
    const auto is_there = [this](const std::string& name) -> Result<bool> {
      const Result<double> touched_at = storage_.touched_at(name);
      if (!touched_at && touched_at.error().code() != ErrorCode::kNotFound) return touched_at.error();
      return touched_at.has_value();
    };
    CAIRN_TRY_ASSIGN(const bool has_metadata, is_there(metadata_name_));
    CAIRN_TRY_ASSIGN(const bool has_data, is_there(data_file_name({identity_, true}, rank, 0)));
    CAIRN_TRY_ASSIGN(seen_, read_metadata_in_place(storage_, metadata_name_));
    CAIRN_TRY(check_overwrite(seen_));
    std::vector<SaveId> saves = read_rank_note(storage_, rank);
    saves.push_back(identity_.save_id);
    write_rank_note(storage_, rank, saves, folder_);
    return !has_metadata && !has_data && !options_.names_taken;
  }

  Result<bool> look_around() {
    CAIRN_TRY_ASSIGN(const std::vector<storage::ListedFile> files, storage_.list());
    const bool is_fresh = std::none_of(files.begin(), files.end(), [this](const storage::ListedFile& file) {
      return file.name != folder_ && file.name != storage::kLockName && belongs_to_a_checkpoint(file.name);
    });
    CAIRN_TRY_ASSIGN(seen_, read_metadata_in_place(storage_, metadata_name_));
    CAIRN_TRY(check_overwrite(seen_));
    CAIRN_TRY(check_model(files));
    return is_fresh && !options_.names_taken;
  }

  Result<bool> is_in_place() const {
    CAIRN_TRY_ASSIGN(const MetadataInPlace now, read_metadata_in_place(storage_, metadata_name_));
    return is_mine(now);
  }
};

}  // namespace

Result<std::unique_ptr<SaveTransaction>> claim_checkpoint(storage::Storage& storage, const SaveIdentity& identity,
                                                          const ClaimOptions& options, Lease::Progress progress) {
  if (!storage.has_rename()) {
    return SaveTransaction::claim(commit_in_bucket(storage, identity, options), std::move(progress));
  }
  return SaveTransaction::claim(std::make_unique<MetadataCommit>(storage, identity, options), std::move(progress));
}

}  // namespace cairn::commit

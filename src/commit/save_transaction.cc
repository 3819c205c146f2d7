// How a save becomes the checkpoint of its directory: a reader sees the complete old checkpoint or the complete new
// checkpoint, even if the process is killed or the power fails at any moment. A single rename is the commit point.
//
// 1. Claim. Make `.cairn-<save id>/` with the lease, *then* list the directory: of two saves that begin together, at
//    least one sees the other. If the directory holds only unrelated files, DCP's own file names are free; otherwise
//    names include the save id, and two saves never share a name. Read the `.metadata` in place. A rank that saves
//    alone looks only at its own names, and adds the save to its note (rank_note.h): the directory is not listed.
// 2. Write (image_writer.cc). New files in the private folder, synced.
// 3. Publish (rank_files.cc). Rename the files to their final names, never replacing a file; sync the directory.
// 4. Seal. Write `.metadata` with its commit record in the folder; sync the file, the folder, the directory, and the
//    parent of every directory that was made.
// 5. Commit. Under the directory's lock (directory_lock.cc) compare the `.metadata` in place with the `.metadata` of
//    step 1. An earlier save of this job may have committed in between; any other change means that this save is
//    superseded. List the files that the rename will orphan. Rename over `.metadata`, sync the directory, and read the
//    save id back. Only now is the save durable. If the sync fails, the save has failed, but nothing is removed: after
//    a power cut either checkpoint may be in place.
// 6. Tell. The caller reports the commit to the ranks (save/save.cc, rank_save.cc). The folder is removed with
//    step 7, or when all ranks have read the decision.
// 7. Clean (leftovers.cc). Remove the files that the replaced `.metadata` named and no metadata in the directory names
//    any more, and the leftovers of dead saves. Under the lock also remove leaked data files, whose save has no folder
//    any more. A rank that saves alone removes only its own files, and finds dead saves by its note. A save that was
//    given up during step 5 and has lost the lock removes nothing: other saves may have committed.
#include "commit/save_transaction.h"

#include <algorithm>
#include <cerrno>
#include <exception>
#include <vector>

#include "commit/dcp_names.h"
#include "commit/leftovers.h"
#include "commit/model_files.h"
#include "commit/rank_note.h"
#include "core/checksum.h"
#include "format/safetensors/index.h"

namespace cairn::commit {
namespace {

constexpr std::string_view kSealedName = "/metadata";
constexpr std::string_view kLockLost =
    "the lock of the directory was lost during the commit: a save of another job may have committed meanwhile, and "
    "been "
    "replaced by this save";
constexpr std::string_view kNoLocks =
    "no file locks on this file system: run only one saving job per directory. Two jobs that commit at the same "
    "instant "
    "may both report success, and data files may be left behind";

// Whether `name` belongs to a checkpoint or to a save in flight, rather than to the trainer's own files.
bool belongs_to_a_checkpoint(std::string_view name) {
  return name.starts_with(kFolderPrefix) || is_dcp_file_name(name) || name == ".metadata.tmp";
}

}  // namespace

Result<std::unique_ptr<SaveTransaction>> SaveTransaction::claim(storage::Storage& storage, const SaveIdentity& identity,
                                                                const ClaimOptions& options, Lease::Progress progress) {
  std::unique_ptr<SaveTransaction> transaction(new SaveTransaction(storage, identity, options));
  CAIRN_TRY_ASSIGN(transaction->lease_, Lease::take_with_folder(storage, identity, std::move(progress)));
  CAIRN_TRY(transaction->look_around());
  return transaction;
}

SaveTransaction::SaveTransaction(storage::Storage& storage, const SaveIdentity& identity, const ClaimOptions& options)
    : storage_(storage),
      identity_(identity),
      options_(options),
      metadata_name_(metadata_name(options.alone_as_rank)),
      folder_(folder_of(identity.save_id)) {}

// Looks at the names of this rank only: the directory may hold the files of very many ranks.
Result<void> SaveTransaction::look_as_rank(std::uint32_t rank) {
  const auto is_there = [this](const std::string& name) -> Result<bool> {
    const Result<double> touched_at = storage_.touched_at(name);
    if (!touched_at && touched_at.error().code() != ErrorCode::kNotFound) return touched_at.error();
    return touched_at.has_value();
  };
  CAIRN_TRY_ASSIGN(const bool has_metadata, is_there(metadata_name_));
  CAIRN_TRY_ASSIGN(const bool has_data, is_there(data_file_name({identity_, true}, rank, 0)));
  fresh_ = !has_metadata && !has_data && !options_.names_taken;
  CAIRN_TRY_ASSIGN(seen_, read_metadata_in_place(storage_, metadata_name_));
  CAIRN_TRY(check_overwrite(seen_));
  std::vector<SaveId> saves = read_rank_note(storage_, rank);
  saves.push_back(identity_.save_id);
  write_rank_note(storage_, rank, saves, folder_);
  return {};
}

Result<void> SaveTransaction::look_around() {
  if (options_.alone_as_rank) return look_as_rank(*options_.alone_as_rank);
  CAIRN_TRY_ASSIGN(const std::vector<storage::ListedFile> files, storage_.list());
  fresh_ = std::none_of(files.begin(), files.end(), [this](const storage::ListedFile& file) {
    return file.name != folder_ && file.name != storage::kLockName && belongs_to_a_checkpoint(file.name);
  });
  fresh_ = fresh_ && !options_.names_taken;
  CAIRN_TRY_ASSIGN(seen_, read_metadata_in_place(storage_, metadata_name_));
  CAIRN_TRY(check_overwrite(seen_));
  if (options_.beside_a_model) return {};
  const auto of_model = std::find_if(files.begin(), files.end(), [](const storage::ListedFile& file) {
    return !file.is_folder && (file.name == safetensors::kIndexName || file.name.ends_with(kModelSuffix));
  });
  if (of_model == files.end()) return {};
  return Error(ErrorCode::kInvalidArgument,
               "the directory holds a safetensors model, which programs that read models would still find: choose a "
               "new directory")
      .file(of_model->name);
}

Result<void> SaveTransaction::check_overwrite(const MetadataInPlace& now) const {
  if (!now.present || options_.overwrite) return {};
  // DCP's wording, which callers match.
  return Error(ErrorCode::kInvalidArgument, "Checkpoint already exists and overwrite=False").file(metadata_name_);
}

SaveTransaction::~SaveTransaction() {
  if (committed_) return;
  try {
    withdraw();
  } catch (const std::exception&) {
    // Out of memory: the next save removes the leftovers, as after a kill.
  }
}

Result<void> SaveTransaction::check_not_superseded(const MetadataInPlace& now) const {
  if (now.same_as(seen_)) return {};
  const bool earlier_of_this_job = now.record && !identity_.is_copy() && now.record->job_id == identity_.job_id &&
                                   now.record->save_number < identity_.save_number;
  if (earlier_of_this_job) return {};
  return Error(ErrorCode::kSuperseded,
               "another save committed into the directory first; the files of this save are withdrawn")
      .file(metadata_name_)
      .expected(seen_.record    ? "save " + to_hex(seen_.record->save_id)
                : seen_.present ? "a stock checkpoint"
                                : "none")
      .actual(now.record    ? "save " + to_hex(now.record->save_id)
              : now.present ? "a stock checkpoint"
                            : "none");
}

Result<void> SaveTransaction::rename_and_confirm(Durability durability) {
  if (fence_ != nullptr) CAIRN_TRY(fence_->begin_decisive_step());
  Result<void> renamed = storage_.replace(folder_ + std::string(kSealedName), metadata_name_);
  if (!renamed) {
    // On a network file system a rename may have succeeded although the answer was lost: read `.metadata` to find out.
    const Result<MetadataInPlace> now = read_metadata_in_place(storage_, metadata_name_);
    if (!now) {
      committed_ = true;  // unknown state: files of a possible checkpoint are not withdrawn
      return Error(renamed.error())
          .while_doing("committing; it is unknown which checkpoint is in place, so the files of both are kept");
    }
    if (!now->record || now->record->save_id != identity_.save_id) return renamed;
  }
  committed_ = true;  // visible from here on: never withdrawn
  if (durability == Durability::kDurable) {
    if (auto synced = storage_.sync(); !synced) {
      return std::move(synced).error().while_doing(
          "syncing the directory after the commit: the new checkpoint is visible, but a power failure may bring the "
          "old checkpoint back; the files of both are kept");
    }
  }
  CAIRN_TRY_ASSIGN(const MetadataInPlace now, read_metadata_in_place(storage_, metadata_name_));
  if (!now.record || now.record->save_id != identity_.save_id) {
    return Error(ErrorCode::kSuperseded, "another save replaced the checkpoint right after the commit")
        .file(metadata_name_);
  }
  return {};
}

Result<CommitReport> SaveTransaction::commit(const std::string& pickle, manifest::CommitRecord record,
                                             Durability durability) {
  record.save_id = identity_.save_id;
  record.job_id = identity_.job_id;
  record.job_start = identity_.job_start;
  record.save_number = identity_.save_number;
  record.front_bytes = pickle.size();
  record.front_checksum = crc32(std::as_bytes(std::span(pickle)));
  const std::string sealed = folder_ + std::string(kSealedName);  // (4)
  CAIRN_TRY(storage_.create_whole(sealed, pickle + manifest::encode_commit_record(record), durability));
  if (durability == Durability::kDurable) {
    CAIRN_TRY(storage_.sync(folder_));
    CAIRN_TRY(storage_.sync());
  }
  CommitReport report;
  {
    CAIRN_TRY_ASSIGN(const std::unique_ptr<storage::StorageLock> lock, storage_.lock());  // (5)
    CAIRN_TRY_ASSIGN(const MetadataInPlace old, read_metadata_in_place(storage_, metadata_name_));
    CAIRN_TRY(check_overwrite(old));
    CAIRN_TRY(check_not_superseded(old));
    const std::vector<std::string> orphans = orphaned_files(storage_, metadata_name_, old, record);
    if (!orphans.empty()) CAIRN_TRY(write_replaced_list(storage_, folder_, orphans));
    if (lock && !lock->is_held()) {
      return Error(
          ErrorCode::kUnavailable,
          "the lock of the directory was lost before the commit; the files of this save are withdrawn, save again");
    }
    CAIRN_TRY(rename_and_confirm(durability));
    const bool given_up = fence_ != nullptr && !fence_->note_committed();
    const bool excludes_others = lock && lock->is_held();
    // Other saves may have committed since: this save ends as if killed here, and a later save cleans up.
    if (given_up && !excludes_others) return report;
    // (7) Under the lock of step 5: otherwise the files of a save with a commit in between would look like a dead
    // save's files.
    const LeakedFiles leaked = excludes_others ? LeakedFiles::kRemove : LeakedFiles::kKeep;
    report.warnings = options_.alone_as_rank
                          ? clean_up_as_rank(storage_, identity_.save_id, record, orphans, *options_.alone_as_rank)
                          : clean_up(storage_, identity_.save_id, record, orphans, leaked);
    if (lock && !excludes_others) report.warnings.emplace_back(kLockLost);
    // Reported once in a job: the job's saves have numbers from 1 on.
    if (!lock && (identity_.is_copy() || identity_.save_number == 1)) report.warnings.emplace_back(kNoLocks);
  }
  if (!keeps_folder_) remove_folder(report.warnings);
  return report;
}

void SaveTransaction::remove_folder(std::vector<std::string>& warnings) {
  leave_note();
  lease_.reset();
  remove_private_folder(storage_, folder_, warnings);
}

void SaveTransaction::withdraw() {
  std::vector<std::string> ignored;  // the error that caused the withdrawal is the error to report
  // The lease is removed after the data files: a kill in between leaves no file whose save cannot be recognised as
  // dead.
  remove_private_folder(storage_, folder_, ignored, Keep::kLease);
  if (expects_any_) look_for_files();
  withdraw_files(storage_, expected_, identity_.save_id);
  leave_note();
  lease_.reset();
  remove_private_folder(storage_, folder_, ignored);
  // Withdraw again: a late rank may have published a file before the folder was removed. Without the folder no rank can
  // publish any more.
  withdraw_files(storage_, expected_, identity_.save_id);
}

// The note keeps the saves that still have a folder.
void SaveTransaction::leave_note() {
  if (!options_.alone_as_rank) return;
  std::vector<SaveId> saves = read_rank_note(storage_, *options_.alone_as_rank);
  std::erase_if(saves, [this](const SaveId& save) {
    if (save == identity_.save_id) return true;
    const Result<double> touched_at = storage_.touched_at(folder_of(save));
    return !touched_at && touched_at.error().code() == ErrorCode::kNotFound;
  });
  write_rank_note(storage_, *options_.alone_as_rank, saves, folder_);
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

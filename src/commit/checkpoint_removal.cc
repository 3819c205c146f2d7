// 1. Take the directory's lock: no save commits, no pin is set, and no second removal runs until step 5 has ended.
// 2. Look again. In place must be the chosen checkpoint, without a pin. No save into the directory may be under way:
//    if the save fails, the directory keeps the checkpoint. A save may still claim the directory before step 3: it
//    commits when step 5 has ended.
// 3. Rename `.metadata` to `.cairn-removed`, and sync the directory. From here on no reader finds the checkpoint, and
//    after a power cut no reader finds it without its files.
// 4. Remove the data files that the metadata names, and that its save has written.
// 5. Remove `.cairn-removed`, and sync the directory.
//
// After a crash between steps 3 and 5 finish_removal() takes step 1, and then 4 and 5 with the names in
// `.cairn-removed`. Meanwhile a later save may have committed a new checkpoint in the directory: files that it names
// stay.
#include "commit/checkpoint_removal.h"

#include <memory>
#include <utility>

#include "commit/bucket/bucket_removal.h"
#include "commit/dead_saves.h"
#include "commit/leftovers.h"
#include "commit/pin.h"
#include "storage/staleness.h"

namespace cairn::commit {
namespace {

const std::string kInPlace{kMetadataName};
const std::string kRemoved{kRemovedName};

Result<void> look_again(storage::Storage& storage, const MetadataInPlace& chosen, std::string& protection) {
  CAIRN_TRY_ASSIGN(const MetadataInPlace in_place, read_metadata_in_place(storage));
  if (!in_place.present) return Error(ErrorCode::kNotFound, "there is no checkpoint any more").file(kInPlace);
  if (!in_place.same_as(chosen)) {
    return Error(ErrorCode::kReplaced, "a save has replaced the checkpoint that was to be removed").file(kInPlace);
  }
  CAIRN_TRY_ASSIGN(const std::optional<std::string> pin, note_of_pin(storage));
  if (pin) {
    protection = text_of_pin(*pin);
    return Error(ErrorCode::kInvalidArgument, "the checkpoint is " + protection).file(std::string(kPinName));
  }
  CAIRN_TRY_ASSIGN(const bool is_saved_into, has_living_save(storage));
  if (!is_saved_into) return {};
  protection = "a save into the directory is under way";
  return Error(ErrorCode::kUnavailable, protection);
}

// Steps 4 and 5. `metadata_name`: the file with the metadata of the checkpoint; after a trial of step 3 still the one
// in place.
Result<CheckpointRemoval> remove_files(RemovalLog& log, const std::string& metadata_name,
                                       const MetadataInPlace& removed, const std::vector<std::string>& names) {
  CheckpointRemoval removal;
  if (removed.record) removal.save_id = removed.record->save_id;
  log.expect(names.size() + 1);
  CAIRN_TRY_ASSIGN(removal.warnings, remove_unneeded(log, names, metadata_name));  // (4)
  if (removal.warnings.empty()) {                                                  // (5)
    CAIRN_TRY(log.remove(metadata_name));
    CAIRN_TRY(log.sync(""));
  }
  removal.files = log.take();
  if (log.tries()) {
    CAIRN_TRY_ASSIGN(removal.leaves_files, log.leaves_files());
  }
  return removal;
}

Result<std::optional<CheckpointRemoval>> finish_under_lock(RemovalLog& log) {
  if (!log.has_rename()) return finish_removal_from_bucket(log);
  CAIRN_TRY_ASSIGN(const MetadataInPlace removed, read_metadata_in_place(log, kRemoved));
  if (!removed.present) return std::optional<CheckpointRemoval>();
  CAIRN_TRY_ASSIGN(const std::vector<std::string> names, files_of_checkpoint(log, kRemoved, removed));
  CAIRN_TRY(log.sync(""));  // the process that renamed may have died before its sync
  CAIRN_TRY_ASSIGN(CheckpointRemoval removal, remove_files(log, kRemoved, removed, names));
  return std::optional(std::move(removal));
}

}  // namespace

Result<CheckpointRemoval> remove_checkpoint(storage::Storage& storage, const MetadataInPlace& chosen, Removal removal,
                                            std::string* protection, WorkCount* count) {
  std::string unasked;
  RemovalLog log(storage, removal, count);
  CAIRN_TRY_ASSIGN(const std::unique_ptr<storage::StorageLock> lock, log.lock());  // (1)
  std::string& reason = protection != nullptr ? *protection : unasked;
  CAIRN_TRY(look_again(log, chosen, reason));  // (2)
  CAIRN_TRY(finish_under_lock(log));           // of an earlier checkpoint of the directory: the name must be free
  (void)log.take();
  CAIRN_TRY_ASSIGN(const std::vector<std::string> names, files_of_checkpoint(log, kInPlace, chosen));
  if (!log.has_rename()) return remove_from_bucket(log, chosen, names, reason);
  CAIRN_TRY(log.publish(kInPlace, kRemoved));  // (3)
  CAIRN_TRY(log.sync(""));
  return remove_files(log, removal == Removal::kTry ? kInPlace : kRemoved, chosen, names);
}

bool has_begun_removal(const storage::Storage& storage) {
  const Result<double> removed_at = storage.touched_at(kRemoved);
  return removed_at || !storage::is_absent(removed_at.error());
}

Result<std::optional<CheckpointRemoval>> finish_removal(storage::Storage& storage, Removal removal, WorkCount* count) {
  if (!has_begun_removal(storage)) return std::optional<CheckpointRemoval>();
  RemovalLog log(storage, removal, count);
  CAIRN_TRY_ASSIGN(const std::unique_ptr<storage::StorageLock> lock, log.lock());
  return finish_under_lock(log);
}

}  // namespace cairn::commit

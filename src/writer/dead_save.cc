#include "writer/dead_save.h"

#include <utility>

#include "storage/posix/posix_storage.h"
#include "transfer/commit.h"
#include "transfer/leftovers.h"
#include "transfer/save_marks.h"

namespace cairn::writer {

Error settle(const DeadSave& save, Error reason) {
  const auto storage = storage::PosixStorage::open_directory(save.directory);
  if (!storage) return reason;
  const auto metadata = transfer::read_metadata_in_place(**storage, save.metadata_name);
  if (metadata && metadata->record && metadata->record->save_id == save.save_id) {
    reason = std::move(reason).actual(
        "the checkpoint of this save is in place; whether it would survive a power cut is not known");
  } else if (save.follows_as) {
    (void)transfer::SaveMarks(**storage, save.save_id).leave_failure(*save.follows_as, reason);
  }
  if (!save.follows_as) transfer::clean_up_after(**storage, save.save_id);
  return reason;
}

}  // namespace cairn::writer

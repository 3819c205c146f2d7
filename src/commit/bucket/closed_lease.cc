#include "commit/bucket/closed_lease.h"

#include <utility>

#include "storage/staleness.h"

namespace cairn::commit {

using storage::WriteCondition;
using storage::WriteOutcome;

Result<LeaseClosing> close_lease(storage::Storage& storage, const std::string& folder) {
  const std::string name = folder + "/" + std::string(kLeaseName);
  const Result<storage::TaggedContent> read = storage.read_tagged(name, kLeaseBytesMax);
  if (!read && storage::is_absent(read.error())) return LeaseClosing{true};
  if (!read) return read.error();
  std::optional<LeaseHolder> holder = decode_lease(read->bytes);
  if (!holder) return Error(ErrorCode::kCorrupt, "the file is not a lease of a save: remove it by hand").file(name);
  if (holder->is_closed) return LeaseClosing{true, std::move(holder)};
  holder->is_closed = true;
  const std::string closed = read->bytes + std::string(kClosedLine);
  CAIRN_TRY_ASSIGN(WriteOutcome outcome, storage.write_if(name, closed, WriteCondition::of_tag(read->tag)));
  if (outcome.kind == WriteOutcome::Kind::kWritten) return LeaseClosing{true, std::move(holder)};
  const Result<storage::TaggedContent> now = storage.read_tagged(name, kLeaseBytesMax);
  if (!now && storage::is_absent(now.error())) return LeaseClosing{true};
  if (!now) return now.error();
  // By this call, whose answer was lost, or by another process.
  if (now->bytes == closed) return LeaseClosing{true, std::move(holder)};
  if (outcome.why) return *std::move(outcome.why);
  return LeaseClosing{false};
}

Result<ClosedSaveState> state_of_closed_save(const storage::Storage& storage, const SaveId& save_id,
                                             const std::optional<LeaseHolder>& holder) {
  const bool has_announced = holder && holder->commit;
  const std::string name = has_announced ? holder->commit->metadata_name : std::string(kMetadataName);
  CAIRN_TRY_ASSIGN(MetadataInPlace now, read_metadata_in_place(storage, name));
  ClosedSave what = ClosedSave::kNotInPlace;
  if (now.record && now.record->save_id == save_id) {
    what = ClosedSave::kInPlace;
  } else if (has_announced) {
    const WriteCondition& condition = holder->commit->condition;
    // A tag is that of a content with a save id, and never comes back. A missing file may: see bucket_commit.cc.
    const bool may_hold = condition.kind == WriteCondition::Kind::kAbsent || condition.tag == now.tag;
    if (may_hold) what = ClosedSave::kUnknown;
  }
  return ClosedSaveState{what, std::move(now)};
}

}  // namespace cairn::commit

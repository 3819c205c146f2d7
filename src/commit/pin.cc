#include "commit/pin.h"

#include <cairn/catalog.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "commit/checkpoint_removal.h"
#include "storage/staleness.h"

namespace cairn::commit {
namespace {

constexpr std::uint64_t kNoteBytesMax = std::uint64_t{64} << 10;

}  // namespace

Result<void> pin(storage::Storage& storage, std::string_view note) {
  if (note.size() > kNoteBytesMax) {
    return Error(ErrorCode::kInvalidArgument, "the note of the pin is too long")
        .expected("at most " + std::to_string(kNoteBytesMax) + " bytes")
        .actual(std::to_string(note.size()) + " bytes");
  }
  CAIRN_TRY_ASSIGN(const std::unique_ptr<storage::StorageLock> lock, storage.lock());
  CAIRN_TRY_ASSIGN(const std::optional<std::string> present, note_of_pin(storage));
  if (present) return {};
  CAIRN_TRY(storage.touched_at(kMetadataName));  // kNotFound without a checkpoint
  CAIRN_TRY(storage.create_whole(kPinName, note, Durability::kDurable));
  if (!storage.has_rename() && has_begun_removal(storage)) {  // there is no lock
    CAIRN_TRY(storage.remove(kPinName));
    return Error(ErrorCode::kNotFound, "the checkpoint is being removed").file(kMetadataName);
  }
  return storage.sync();
}

Result<bool> unpin(storage::Storage& storage) {
  CAIRN_TRY_ASSIGN(const std::unique_ptr<storage::StorageLock> lock, storage.lock());
  const Result<double> pinned_at = storage.touched_at(kPinName);
  if (!pinned_at && storage::is_absent(pinned_at.error())) return false;
  if (!pinned_at) return pinned_at.error();
  CAIRN_TRY(storage.remove(kPinName));
  CAIRN_TRY(storage.sync());
  return true;
}

Result<std::optional<std::string>> note_of_pin(const storage::Storage& storage) {
  Result<std::string> note = storage::read_small(storage, kPinName, kNoteBytesMax);
  if (note) return std::optional(*std::move(note));
  if (storage::is_absent(note.error())) return std::optional<std::string>();
  return std::move(note).error();
}

std::string text_of_pin(const std::string& note) { return note.empty() ? "pinned" : "pinned: " + note; }

}  // namespace cairn::commit

#include "format/torch_file/checked_storages.h"

#include <algorithm>

#include "core/checked.h"
#include "core/checksum.h"

namespace cairn::torch_file {
namespace {

constexpr std::uint64_t kBlockBytes = std::uint64_t{1} << 20;

Result<void> compare(std::string_view key, const StoragePlace& place, std::uint32_t found) {
  if (found == *place.crc) return {};
  return Error(ErrorCode::kCorrupt, "record " + storage_record_name(key) + " is damaged")
      .offset(place.offset)
      .expected("CRC " + std::to_string(*place.crc))
      .actual("CRC " + std::to_string(found));
}

}  // namespace

Result<void> check_storage_bytes(std::string_view key, std::uint64_t expected, std::uint64_t actual) {
  if (actual == expected) return {};
  return Error(ErrorCode::kCorrupt, "a storage record of the wrong size")
      .expected(std::to_string(expected) + " bytes")
      .actual(std::to_string(actual) + " bytes in " + storage_record_name(key));
}

Result<StoragePlace> CheckedStorages::find_in(const ArchiveReader& archive, std::string_view key) {
  CAIRN_TRY_ASSIGN(const zip::DirectoryEntry* entry, archive.require(storage_record_name(key)));
  CAIRN_TRY_ASSIGN(const std::uint64_t offset, zip::payload_offset(archive.archive(), *entry));
  return StoragePlace{offset, entry->size, entry->crc};
}

Result<void> CheckedStorages::read(std::string_view key, std::uint64_t begin, std::span<std::byte> out) const {
  CAIRN_TRY_ASSIGN(const StoragePlace place, find_(key));
  if (!range_within(begin, std::uint64_t{out.size()}, place.bytes)) {
    return Error(ErrorCode::kCorrupt, "a range beyond the end of record " + storage_record_name(key))
        .expected("within " + std::to_string(place.bytes) + " bytes")
        .actual(std::to_string(begin) + " to " + std::to_string(begin + out.size()));
  }
  const bool needs_check = place.crc && !is_checked(place.offset);
  const bool is_whole = out.size() == place.bytes;
  if (needs_check && !is_whole) CAIRN_TRY(check(key, place));
  CAIRN_TRY(file_->read_at(place.offset + begin, out));
  if (needs_check && is_whole) CAIRN_TRY(compare(key, place, crc32(out)));
  note_read(place.offset, needs_check, is_whole);
  return {};
}

Result<std::vector<std::byte>> CheckedStorages::read_whole(std::string_view key) const {
  CAIRN_TRY_ASSIGN(const StoragePlace place, find_(key));
  std::vector<std::byte> bytes(place.bytes);
  CAIRN_TRY(read(key, 0, bytes));
  return bytes;
}

Result<void> CheckedStorages::check(std::string_view key, const StoragePlace& place) const {
  std::vector<std::byte> block(std::min(place.bytes, kBlockBytes));
  std::uint32_t crc = 0;
  for (std::uint64_t done = 0; done < place.bytes; done += block.size()) {
    block.resize(std::min<std::uint64_t>(block.size(), place.bytes - done));
    CAIRN_TRY(file_->read_at(place.offset + done, block));
    crc = crc32(block, crc);
  }
  return compare(key, place, crc);
}

bool CheckedStorages::is_checked(std::uint64_t offset) const {
  const std::lock_guard lock(mutex_);
  return checked_.contains(offset);
}

bool CheckedStorages::was_read(std::uint64_t offset, bool whole) const {
  const std::lock_guard lock(mutex_);
  const auto found = read_.find(offset);
  return found != read_.end() && (found->second || !whole);
}

void CheckedStorages::note_read(std::uint64_t offset, bool is_checked, bool is_whole) const {
  const std::lock_guard lock(mutex_);
  read_[offset] |= is_whole;
  if (is_checked) checked_.insert(offset);
}

}  // namespace cairn::torch_file

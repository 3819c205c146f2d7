#include "format/torch_file/archive_reader.h"

#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "core/checksum.h"

namespace cairn::torch_file {

Result<ArchiveReader> ArchiveReader::open(const ByteSource& archive) {
  CAIRN_TRY_ASSIGN(zip::Directory directory, zip::read_directory(archive));
  if (directory.find("data.pkl") == nullptr) {
    return Error(ErrorCode::kUnsupported, "a zip archive, but not one of torch.save").expected("a record data.pkl");
  }
  return ArchiveReader(archive, std::move(directory));
}

Result<const zip::DirectoryEntry*> ArchiveReader::require(std::string_view name) const {
  const zip::DirectoryEntry* entry = directory_.find(name);
  if (entry == nullptr) return Error(ErrorCode::kCorrupt, "the archive lacks a record").expected(name);
  return entry;
}

Result<std::vector<std::byte>> ArchiveReader::read(std::string_view name) const {
  CAIRN_TRY_ASSIGN(const zip::DirectoryEntry* entry, require(name));
  CAIRN_TRY_ASSIGN(const std::uint64_t offset, zip::payload_offset(*archive_, *entry));
  std::vector<std::byte> bytes(entry->size);
  CAIRN_TRY(archive_->read_at(offset, bytes));
  if (!entry->crc) return bytes;
  const std::uint32_t crc = crc32(bytes);
  if (crc != *entry->crc) {
    return Error(ErrorCode::kCorrupt, "record " + std::string(name) + " is damaged")
        .offset(offset)
        .expected("CRC " + std::to_string(*entry->crc))
        .actual("CRC " + std::to_string(crc));
  }
  return bytes;
}

Result<bool> ArchiveReader::big_endian() const {
  const zip::DirectoryEntry* entry = directory_.find("byteorder");
  if (entry == nullptr) return false;
  CAIRN_TRY_ASSIGN(const std::uint64_t offset, zip::payload_offset(*archive_, *entry));
  std::array<char, 6> text{};
  const std::size_t length = std::min<std::size_t>(text.size(), entry->size);
  CAIRN_TRY(archive_->read_at(offset, std::as_writable_bytes(std::span(text).first(length))));
  const std::string_view order(text.data(), length);
  if (entry->size == length && order == "little") return false;
  if (entry->size == length && order == "big") return true;
  return Error(ErrorCode::kCorrupt, "an unknown byte order").offset(offset).actual(order);
}

}  // namespace cairn::torch_file

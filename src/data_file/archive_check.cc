#include "data_file/archive_check.h"

#include <algorithm>
#include <vector>

#include "core/checksum.h"
#include "format/zip/directory.h"

namespace cairn::data_file {
namespace {

constexpr std::uint64_t kPieceBytes = 1024 * 1024;

Result<std::uint32_t> crc_of(const ByteSource& source, std::uint64_t offset, std::uint64_t length) {
  std::vector<std::byte> piece(std::min(length, kPieceBytes));
  std::uint32_t crc = 0;
  for (std::uint64_t done = 0; done < length;) {
    const std::span<std::byte> bytes = std::span(piece).first(std::min(kPieceBytes, length - done));
    CAIRN_TRY(source.read_at(offset + done, bytes));
    crc = crc32(bytes, crc);
    done += bytes.size();
  }
  return crc;
}

}  // namespace

Result<ArchiveCoverage> check_archive(const ByteSource& archive) {
  CAIRN_TRY_ASSIGN(const zip::Directory directory, zip::read_directory(archive));
  ArchiveCoverage coverage{0, archive.size()};
  for (const zip::DirectoryEntry& entry : directory.entries) {
    CAIRN_TRY_ASSIGN(const std::uint64_t offset, zip::payload_offset(archive, entry));
    if (!entry.crc) continue;
    CAIRN_TRY_ASSIGN(const std::uint32_t actual, crc_of(archive, offset, entry.size));
    if (actual != *entry.crc) {
      return Error(ErrorCode::kCorrupt, "the checksum of record '" + entry.name + "' differs")
          .offset(offset)
          .expected(crc_text(*entry.crc))
          .actual(crc_text(actual));
    }
    coverage.bytes_checked += entry.size;
  }
  // zip::read_directory() refuses records that share bytes, and the sum is therefore at most the archive's size. The
  // minimum keeps the difference from wrapping around in any case.
  coverage.bytes_unchecked -= std::min(coverage.bytes_checked, coverage.bytes_unchecked);
  return coverage;
}

}  // namespace cairn::data_file

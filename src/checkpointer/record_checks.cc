#include "checkpointer/record_checks.h"

#include <algorithm>
#include <span>

#include "core/checksum.h"
#include "data_file/range_fetch.h"
#include "os/page_buffer.h"

namespace cairn::checkpointer {
namespace {

constexpr std::uint64_t kPieceBytes = 4 * 1024 * 1024;

}  // namespace

Result<void> RecordChecks::check(const data_file::DataFile& file, const data_file::StoredTensor& stored,
                                 std::string_view key) {
  if (!stored.record_crc) return {};
  Record* record = nullptr;
  {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<Record>& known = records_[{&file, stored.record_offset}];
    if (!known) known = std::make_unique<Record>();
    record = known.get();
  }
  const std::lock_guard lock(record->mutex);
  if (!record->crc) {
    Result<std::uint32_t> crc = crc_of(file, stored);
    if (!crc) return std::move(crc).error().key(key).file(file.name());
    record->crc = *crc;
  }
  if (*record->crc == *stored.record_crc) return {};
  return Error(ErrorCode::kCorrupt, "a checksum differs")
      .key(key)
      .file(file.name())
      .offset(stored.record_offset)
      .expected(crc_text(*stored.record_crc))
      .actual(crc_text(*record->crc));
}

Result<std::uint32_t> RecordChecks::crc_of(const data_file::DataFile& file,
                                           const data_file::StoredTensor& stored) const {
  os::PageBuffer buffer(std::min(kPieceBytes, stored.record_bytes) + data_file::kFetchMarginBytes);
  std::uint32_t crc = 0;
  for (std::uint64_t done = 0; done < stored.record_bytes;) {
    if (stop_.is_set()) return Error(ErrorCode::kCancelled, "the check of a record was interrupted");
    const std::uint64_t begin = stored.record_offset + done;
    const std::uint64_t length = std::min(kPieceBytes, stored.record_bytes - done);
    const bool cached = data_file::better_from_cache(file.bytes(), begin, length, true);
    std::span<std::byte> bytes;
    CAIRN_TRY_ASSIGN(bytes, data_file::fetch_range(file.bytes(), begin, length, cached, buffer));
    crc = crc32(bytes, crc);
    done += length;
  }
  return crc;
}

}  // namespace cairn::checkpointer

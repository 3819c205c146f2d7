#include "data_file/record_checks.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <span>
#include <vector>

#include "core/checksum.h"
#include "data_file/range_fetch.h"
#include "os/page_buffer.h"

namespace cairn::data_file {
namespace {

constexpr std::uint64_t kRecordPieceBytes = 4 * 1024 * 1024;

}  // namespace

RecordChecks::Record& RecordChecks::record_at(const Place& place, std::string_view key, const StoredTensor& stored) {
  const auto [found, is_new] = records_.try_emplace(place);
  if (is_new) {
    found->second.key = key;
    found->second.bytes = stored.record_bytes;
    found->second.crc = *stored.record_crc;
  }
  return found->second;
}

Result<void> RecordChecks::compare(const Place& place, std::string_view key, const Record& record, std::uint32_t crc) {
  if (crc == record.crc) return {};
  return Error(ErrorCode::kCorrupt, "a checksum differs")
      .key(key)
      .file(place.first->name())
      .offset(place.second)
      .expected(crc_text(record.crc))
      .actual(crc_text(crc));
}

Result<void> RecordChecks::add(const DataFile& file, std::string_view key, const StoredTensor& stored,
                               const Piece& piece) {
  if (piece.length == 0) return {};
  const Place place{&file, stored.record_offset};
  const std::lock_guard lock(mutex_);
  Record& record = record_at(place, key, stored);
  if (record.overlaps) return {};
  record.is_checked = false;  // the bytes of another pass are checked, too
  std::uint64_t begin = piece.begin;
  std::uint64_t end = piece.begin + piece.length;
  std::uint32_t crc = piece.crc;
  auto next = record.ranges.lower_bound(begin);
  const bool is_before_next = next == record.ranges.end() || next->first >= end;
  const bool is_after_last = next == record.ranges.begin() || std::prev(next)->second.first <= begin;
  if (!is_before_next || !is_after_last) {
    record.overlaps = true;
    record.ranges.clear();
    return {};
  }
  if (next != record.ranges.begin() && std::prev(next)->second.first == begin) {
    const auto last = std::prev(next);
    crc = combine_crc32(last->second.second, crc, end - begin);
    begin = last->first;
    record.ranges.erase(last);
  }
  if (next != record.ranges.end() && next->first == end) {
    crc = combine_crc32(crc, next->second.second, next->second.first - end);
    end = next->second.first;
    record.ranges.erase(next);
  }
  if (begin != 0 || end != record.bytes) {
    record.ranges.emplace(begin, std::pair(end, crc));
    return {};
  }
  record.is_checked = true;
  record.ranges.clear();
  return compare(place, record.key, record, crc);
}

Result<void> RecordChecks::check(const DataFile& file, std::string_view key, const StoredTensor& stored) {
  if (!stored.record_crc) return {};
  const Place place{&file, stored.record_offset};
  Record* record = nullptr;
  {
    const std::lock_guard lock(mutex_);
    record = &record_at(place, key, stored);
  }
  return read_whole(place, key, *record);
}

Result<void> RecordChecks::finish(Which which, std::size_t thread_count) {
  std::vector<std::pair<const Place*, Record*>> unchecked;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [place, record] : records_) {
      if (record.is_checked || (which == Which::kOverlapping && !record.overlaps)) continue;
      unchecked.emplace_back(&place, &record);
    }
  }
  if (unchecked.empty()) return {};
  std::atomic<std::size_t> next{0};
  const std::size_t threads = std::clamp<std::size_t>(thread_count, 1, unchecked.size());
  return os::run_parallel(threads, {}, [&](std::size_t, os::StopFlag& stop) -> Result<void> {
    for (std::size_t i = next++; i < unchecked.size() && !stop.is_set(); i = next++) {
      const auto& [place, record] = unchecked[i];
      CAIRN_TRY(read_whole(*place, record->key, *record));
    }
    return {};
  });
}

Result<void> RecordChecks::read_whole(const Place& place, std::string_view key, Record& record) const {
  const std::lock_guard lock(record.reading);
  if (!record.whole_crc) {
    Result<std::uint32_t> crc = crc_of(place, record.bytes);
    if (!crc) return std::move(crc).error().key(key).file(place.first->name());
    record.whole_crc = *crc;
  }
  return compare(place, key, record, *record.whole_crc);
}

Result<std::uint32_t> RecordChecks::crc_of(const Place& place, std::uint64_t bytes) const {
  const storage::ReadableFile& file = place.first->bytes();
  os::PageBuffer buffer(std::min(kRecordPieceBytes, bytes) + kFetchMarginBytes);
  std::uint32_t crc = 0;
  for (std::uint64_t done = 0; done < bytes;) {
    if (stop_.is_set()) return Error(ErrorCode::kCancelled, "the check of a record was interrupted");
    const std::uint64_t begin = place.second + done;
    const std::uint64_t length = std::min(kRecordPieceBytes, bytes - done);
    const bool cached = better_from_cache(file, begin, length, true);
    std::span<std::byte> piece;
    CAIRN_TRY_ASSIGN(piece, fetch_range(file, begin, length, cached, buffer));
    crc = crc32(piece, crc);
    done += length;
  }
  return crc;
}

}  // namespace cairn::data_file

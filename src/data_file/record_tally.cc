#include "data_file/record_tally.h"

#include <iterator>

#include "core/checksum.h"

namespace cairn::data_file {

Result<void> RecordTally::judge(const Place& place, Record& record, std::uint32_t crc) {
  record.is_checked = true;
  record.ranges.clear();
  if (crc == record.crc) return {};
  return Error(ErrorCode::kCorrupt, "the checksum of a record differs")
      .key(record.key)
      .file(place.first->name())
      .offset(place.second)
      .expected(crc_text(record.crc))
      .actual(crc_text(crc));
}

Result<void> RecordTally::add(const DataFile& file, std::string_view key, const StoredTensor& stored,
                              const Piece& piece) {
  if (piece.length == 0) return {};
  const Place place{&file, stored.record_offset};
  const std::lock_guard lock(mutex_);
  Record& record = records_[place];
  if (record.bytes == 0) {
    record.key = key;
    record.bytes = stored.record_bytes;
    record.crc = *stored.record_crc;
  }
  if (record.overlaps) return {};
  record.is_checked = false;  // the bytes of a further pass are checked, too
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
  if (begin == 0 && end == record.bytes) return judge(place, record, crc);
  record.ranges.emplace(begin, std::pair(end, crc));
  return {};
}

std::vector<RecordTally::Unchecked> RecordTally::unchecked(Which which) const {
  const std::lock_guard lock(mutex_);
  std::vector<Unchecked> records;
  for (const auto& [place, record] : records_) {
    if (record.is_checked || (which == Which::kOverlapping && !record.overlaps)) continue;
    StoredTensor stored;
    stored.record_offset = place.second;
    stored.record_bytes = record.bytes;
    stored.record_crc = record.crc;
    records.push_back({place.first, std::move(stored), record.key});
  }
  return records;
}

}  // namespace cairn::data_file

#include "data_file/piece_delivery.h"

#include <algorithm>

#include "core/checksum.h"
#include "core/conversion.h"
#include "core/stored_elements.h"

namespace cairn::data_file {
namespace {

Error checksum_differs(const TensorRead& read, std::uint64_t record_offset, std::uint32_t expected,
                       std::uint32_t actual) {
  return Error(ErrorCode::kCorrupt, "a checksum differs")
      .key(read.key())
      .file(read.file().name())
      .offset(read.stored().record_offset + record_offset)
      .expected(crc_text(expected))
      .actual(crc_text(actual));
}

// Converts stored elements into the elements that the caller gets. Pieces begin and end with whole elements, except at
// the end of a record that is not a multiple of the element size.
void finalize(const StoredTensor& stored, std::span<std::byte> bytes) {
  if (stored.is_final()) return;
  bytes = bytes.first(bytes.size() - bytes.size() % item_bytes(stored.dtype));
  if (stored.big_endian) swap_bytes(stored.dtype, bytes);
  if (stored.negative) negate(stored.dtype, bytes);
  if (stored.conjugate) negate_imaginary(stored.dtype, bytes);
}

}  // namespace

RecordCheck::RecordCheck(const TensorRead& read, const DeliveryOptions& options, std::uint64_t bytes_scheduled)
    : read_(&read) {
  const StoredTensor& stored = read.stored();
  if (options.verify == Verify::kNone) return;
  by_block_ = !stored.block_crcs.empty();
  whole_ = !by_block_ && stored.record_crc && bytes_scheduled == stored.record_bytes;
  if (!by_block_ && !whole_ && stored.record_crc) record_checks_ = options.checks;
  if (whole_) seen_.resize(checksum_block_count(stored.record_bytes), 0);
}

std::uint64_t RecordCheck::step() const { return by_block_ ? read_->stored().block_bytes : kChecksumBlockBytes; }

Result<void> RecordCheck::report(std::uint64_t begin, std::uint64_t length, std::uint32_t crc) {
  if (record_checks_ != nullptr) {
    return record_checks_->add(read_->file(), read_->key(), read_->stored(), {begin, length, crc});
  }
  const std::uint64_t block = begin / step();
  if (whole_) seen_[block] = crc;
  if (!by_block_) return {};
  const std::uint32_t expected = read_->stored().block_crcs[block];
  if (crc != expected) return checksum_differs(*read_, begin, expected, crc);
  return {};
}

Result<void> RecordCheck::finish() const {
  if (!whole_) return {};
  const std::uint32_t expected = *read_->stored().record_crc;
  const std::uint32_t actual = combine_blocks(seen_, read_->stored().record_bytes);
  if (actual != expected) return checksum_differs(*read_, 0, expected, actual);
  return {};
}

PieceDelivery::PieceDelivery(const std::vector<TensorRead>& reads, const std::vector<ReadPiece>& pieces,
                             const DeliveryOptions& options)
    : reads_(reads), options_(options) {
  std::vector<std::uint64_t> bytes_scheduled(reads.size());
  for (const ReadPiece& piece : pieces) bytes_scheduled[piece.read] += piece.end - piece.begin;
  checks_.reserve(reads.size());
  for (std::size_t i = 0; i < reads.size(); ++i) checks_.emplace_back(reads[i], options, bytes_scheduled[i]);
}

Result<void> PieceDelivery::finish() const {
  for (const RecordCheck& check : checks_) CAIRN_TRY(check.finish());
  return {};
}

Result<void> PieceDelivery::deliver(const ReadPiece& piece, std::span<std::byte> bytes, const os::StopFlag& stop) {
  const TensorRead& read = reads_[piece.read];
  CAIRN_TRY(check(piece, bytes));
  finalize(read.stored(), bytes);
  const auto begin = static_cast<std::int64_t>(piece.begin / read.item_size()) - read.first_element();
  if (!read.target().device.is_cpu()) return deliver_to_device(read, begin, bytes, stop);
  auto* memory = static_cast<std::byte*>(read.target().data);
  if (read.converts()) {
    const bool counts = options_.losses != nullptr && piece.read < options_.counted_reads;
    ConversionLoss loss;
    const DTypeChange change{read.stored().dtype, read.target().dtype, counts ? &loss : nullptr};
    scatter_converted(read.region(), change, bytes, begin, memory);
    if (counts) options_.losses->add(read.key(), loss);
  } else {
    scatter(read.region(), read.item_size(), bytes, begin, memory);
  }
  return {};
}

Result<void> PieceDelivery::deliver_to_device(const TensorRead& read, std::int64_t begin,
                                              std::span<const std::byte> bytes, const os::StopFlag& stop) {
  if (!read.converts()) return options_.devices->place(read, begin, bytes, stop);
  const auto count = static_cast<std::int64_t>(bytes.size() / read.item_size());
  std::vector<std::byte> converted(static_cast<std::size_t>(count) * item_bytes(read.target().dtype));
  const Region row({count}, {1}, {1});
  const DTypeChange change{read.stored().dtype, read.target().dtype, nullptr};
  scatter_converted(row, change, bytes.first(static_cast<std::size_t>(count) * read.item_size()), 0, converted.data());
  return options_.devices->place(read, begin, converted, stop);
}

Result<void> PieceDelivery::check(const ReadPiece& piece, std::span<const std::byte> bytes) {
  RecordCheck& record = checks_[piece.read];
  if (!record.wanted()) return {};
  for (std::uint64_t done = 0; done < bytes.size(); done += record.step()) {
    const auto block = bytes.subspan(done, std::min<std::uint64_t>(record.step(), bytes.size() - done));
    CAIRN_TRY(record.report(piece.begin + done, block.size(), crc32(block)));
  }
  return {};
}

}  // namespace cairn::data_file

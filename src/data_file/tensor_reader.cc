#include "data_file/tensor_reader.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/checked.h"
#include "core/checksum.h"
#include "core/conversion.h"
#include "core/stored_elements.h"
#include "data_file/range_fetch.h"
#include "os/page_buffer.h"
#include "os/parallel.h"

namespace cairn::data_file {
namespace {

// Bytes are read and checked in steps of this size: the check then finds the bytes in the processor's cache.
constexpr std::uint64_t kCachedStepBytes = 4 * kChecksumBlockBytes;

Error checksum_differs(const TensorRead& read, std::uint64_t record_offset, std::uint32_t expected,
                       std::uint32_t actual) {
  return Error(ErrorCode::kCorrupt, "a checksum differs")
      .key(read.key())
      .file(read.file().name())
      .offset(read.stored().record_offset + record_offset)
      .expected(crc_text(expected))
      .actual(crc_text(actual));
}

// Checks the bytes read from a record: each block against the block's checksum, or the whole record against the
// record's checksum at the end. A record that is not read whole is left to the RecordChecks of the options.
class RecordCheck {
 public:
  // `bytes_scheduled`: of the record's bytes, those that the pieces of the read fetch.
  RecordCheck(const TensorRead& read, const ReadOptions& options, std::uint64_t bytes_scheduled) : read_(&read) {
    const StoredTensor& stored = read.stored();
    if (options.verify == Verify::kNone) return;
    by_block_ = !stored.block_crcs.empty();
    whole_ = !by_block_ && stored.record_crc && bytes_scheduled == stored.record_bytes;
    if (!by_block_ && !whole_ && stored.record_crc) record_checks_ = options.checks;
    if (whole_) seen_.resize(checksum_block_count(stored.record_bytes), 0);
  }

  bool wanted() const { return by_block_ || whole_ || record_checks_ != nullptr; }
  // The bytes whose CRC report() expects; the last bytes of the record may be fewer.
  std::uint64_t step() const { return by_block_ ? read_->stored().block_bytes : kChecksumBlockBytes; }

  // Reports the CRC of `length` bytes at offset `begin` of the record: a block, unless RecordChecks gets the CRC.
  // Each byte is reported once, by one thread.
  Result<void> report(std::uint64_t begin, std::uint64_t length, std::uint32_t crc) {
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

  Result<void> finish() const {
    if (!whole_) return {};
    const std::uint32_t expected = *read_->stored().record_crc;
    const std::uint32_t actual = combine_blocks(seen_, read_->stored().record_bytes);
    if (actual != expected) return checksum_differs(*read_, 0, expected, actual);
    return {};
  }

 private:
  const TensorRead* read_;
  bool by_block_ = false;
  bool whole_ = false;
  RecordChecks* record_checks_ = nullptr;
  std::vector<std::uint32_t> seen_;
};

// Converts stored elements into the elements that the caller gets. Pieces begin and end with whole elements, except at
// the end of a record that is not a multiple of the element size.
void finalize(const StoredTensor& stored, std::span<std::byte> bytes) {
  if (stored.is_final()) return;
  bytes = bytes.first(bytes.size() - bytes.size() % item_bytes(stored.dtype));
  if (stored.big_endian) swap_bytes(stored.dtype, bytes);
  if (stored.negative) negate(stored.dtype, bytes);
  if (stored.conjugate) negate_imaginary(stored.dtype, bytes);
}

class BatchReader {
 public:
  BatchReader(const std::vector<TensorRead>& reads, const ReadOptions& options)
      : reads_(reads), options_(options), schedule_(schedule_reads(reads, options.verify)) {
    std::vector<std::uint64_t> bytes_scheduled(reads.size());
    for (const ReadPiece& piece : schedule_.pieces) bytes_scheduled[piece.read] += piece.end - piece.begin;
    checks_.reserve(reads.size());
    for (std::size_t i = 0; i < reads.size(); ++i) checks_.emplace_back(reads[i], options, bytes_scheduled[i]);
  }

  std::size_t batch_count() const { return schedule_.batches.size(); }

  Result<void> work(os::StopFlag& stop) {
    if (options_.buffer != nullptr) return work(stop, *options_.buffer);
    os::PageBuffer buffer(kReadBufferBytes);
    return work(stop, buffer);
  }

  Result<void> work(os::StopFlag& stop, os::PageBuffer& buffer) {
    while (!stop.is_set()) {
      const std::size_t next = next_batch_.fetch_add(1);
      if (next >= schedule_.batches.size()) break;
      CAIRN_TRY(read_batch(schedule_.batches[next], buffer));
    }
    return {};
  }

  Result<void> finish() const {
    for (const RecordCheck& check : checks_) CAIRN_TRY(check.finish());
    return {};
  }

  std::uint64_t bytes_read() const { return bytes_read_.load(); }

 private:
  Result<void> read_batch(const ReadBatch& batch, os::PageBuffer& buffer) {
    const storage::ReadableFile& file = batch.file->bytes();
    const std::uint64_t length = batch.end - batch.begin;
    bytes_read_.fetch_add(length);
    const bool shared = batch.sharers.count > 1;
    const bool brings = shared && !file.is_cached(batch.begin, length);
    if (brings) file.prefetch(batch.begin, length);
    const bool cached = shared || better_from_cache(file, batch.begin, length, options_.direct_io);
    CAIRN_TRY(fill_targets(batch, cached, buffer));
    // A file without direct I/O is in the page cache after any read.
    if (brings && options_.brought != nullptr && file.direct_alignment()) {
      options_.brought->add(file, batch.begin, length);
    }
    return {};
  }

  Result<void> fill_targets(const ReadBatch& batch, bool cached, os::PageBuffer& buffer) {
    if (batch.piece_count == 1) {
      const ReadPiece& piece = schedule_.pieces[batch.first_piece];
      if (fits_target(reads_[piece.read], piece)) return read_in_place(batch, piece, cached, buffer);
    }
    std::span<std::byte> bytes;
    CAIRN_TRY_ASSIGN(bytes, fetch_range(batch.file->bytes(), batch.begin, batch.end - batch.begin, cached, buffer));
    for (std::size_t i = 0; i < batch.piece_count; ++i) {
      const ReadPiece& piece = schedule_.pieces[batch.first_piece + i];
      const std::uint64_t offset = reads_[piece.read].stored().record_offset + piece.begin - batch.begin;
      CAIRN_TRY(deliver(piece, bytes.subspan(offset, piece.end - piece.begin)));
    }
    return {};
  }

  Result<void> deliver(const ReadPiece& piece, std::span<std::byte> bytes) {
    const TensorRead& read = reads_[piece.read];
    CAIRN_TRY(check(piece, bytes));
    finalize(read.stored(), bytes);
    const auto begin = static_cast<std::int64_t>(piece.begin / read.item_size()) - read.first_element();
    if (!read.target().device.is_cpu()) return deliver_to_device(read, begin, bytes);
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

  Result<void> deliver_to_device(const TensorRead& read, std::int64_t begin, std::span<const std::byte> bytes) {
    if (!read.converts()) return options_.devices->place(read, begin, bytes);
    const auto count = static_cast<std::int64_t>(bytes.size() / read.item_size());
    std::vector<std::byte> converted(static_cast<std::size_t>(count) * item_bytes(read.target().dtype));
    const Region row({count}, {1}, {1});
    const DTypeChange change{read.stored().dtype, read.target().dtype, nullptr};
    scatter_converted(row, change, bytes.first(static_cast<std::size_t>(count) * read.item_size()), 0,
                      converted.data());
    return options_.devices->place(read, begin, converted);
  }

  // Compares the complete bytes of a piece with the record's checksums. A piece to be checked begins at a multiple of
  // the checksum block's size.
  Result<void> check(const ReadPiece& piece, std::span<const std::byte> bytes) {
    RecordCheck& record = checks_[piece.read];
    if (!record.wanted()) return {};
    for (std::uint64_t done = 0; done < bytes.size(); done += record.step()) {
      const auto block = bytes.subspan(done, std::min<std::uint64_t>(record.step(), bytes.size() - done));
      CAIRN_TRY(record.report(piece.begin + done, block.size(), crc32(block)));
    }
    return {};
  }

  Result<void> read_in_place(const ReadBatch& batch, const ReadPiece& piece, bool cached, os::PageBuffer& buffer) {
    const TensorRead& read = reads_[piece.read];
    const storage::ReadableFile& file = batch.file->bytes();
    std::byte* memory = static_cast<std::byte*>(read.target().data) + (piece.begin - read.span_begin());
    const std::span<std::byte> target(memory, piece.end - piece.begin);
    const auto alignment = cached ? std::nullopt : file.direct_alignment();
    if (!alignment) return read_through_cache(file, batch.begin, piece, target);
    const bool aligned = reinterpret_cast<std::uintptr_t>(memory) % alignment->memory == 0 &&
                         batch.begin % alignment->offset == 0 && target.size() % alignment->offset == 0;
    if (aligned) {
      CAIRN_TRY(file.read_direct_at(batch.begin, target));
      return check(piece, target);
    }
    std::span<std::byte> bytes;
    CAIRN_TRY_ASSIGN(bytes, fetch_range(file, batch.begin, target.size(), false, buffer));
    RecordCheck& record = checks_[piece.read];
    for (std::uint64_t done = 0; done < bytes.size(); done += record.step()) {
      const std::uint64_t length = std::min<std::uint64_t>(record.step(), bytes.size() - done);
      if (!record.wanted()) {
        std::memcpy(target.data() + done, bytes.data() + done, length);
        continue;
      }
      const std::uint32_t crc = copy_with_crc32(target.subspan(done, length), bytes.subspan(done, length));
      CAIRN_TRY(record.report(piece.begin + done, length, crc));
    }
    return {};
  }

  Result<void> read_through_cache(const storage::ReadableFile& file, std::uint64_t offset, const ReadPiece& piece,
                                  std::span<std::byte> target) {
    const std::uint64_t step_bytes = std::max(kCachedStepBytes, checks_[piece.read].step());
    for (std::uint64_t done = 0; done < target.size(); done += step_bytes) {
      const auto step = target.subspan(done, std::min<std::uint64_t>(step_bytes, target.size() - done));
      CAIRN_TRY(file.read_at(offset + done, step));
      CAIRN_TRY(check({piece.read, piece.begin + done, piece.begin + done + step.size()}, step));
    }
    return {};
  }

  const std::vector<TensorRead>& reads_;
  const ReadOptions& options_;
  ReadSchedule schedule_;
  std::vector<RecordCheck> checks_;
  std::atomic<std::size_t> next_batch_{0};
  std::atomic<std::uint64_t> bytes_read_{0};
};

}  // namespace

Result<ReadCounts> read_tensors(const std::vector<TensorRead>& reads, const ReadOptions& options) {
  BatchReader reader(reads, options);
  const std::size_t threads =
      std::clamp<std::size_t>(options.thread_count, 1, std::max<std::size_t>(reader.batch_count(), 1));
  if (threads == 1 && !options.interrupted) {  // many small calls would each start a thread
    os::StopFlag stop;
    CAIRN_TRY(reader.work(stop));
  } else {
    CAIRN_TRY(os::run_parallel(threads, options.interrupted,
                               [&reader](std::size_t, os::StopFlag& stop) { return reader.work(stop); }));
  }
  CAIRN_TRY(reader.finish());
  ReadCounts counts{0, reader.bytes_read()};
  for (const TensorRead& read : reads) counts.bytes_needed += read.bytes_needed();
  return counts;
}

}  // namespace cairn::data_file

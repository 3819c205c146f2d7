#include "data_file/tensor_reader.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>

#include "core/checked.h"
#include "core/checksum.h"
#include "data_file/piece_delivery.h"
#include "data_file/range_fetch.h"
#include "data_file/read_outcomes.h"
#include "os/page_buffer.h"
#include "os/parallel.h"

namespace cairn::data_file {
namespace {

// Bytes are read and checked in steps of this size: the check then finds the bytes in the processor's cache.
constexpr std::uint64_t kCachedStepBytes = 4 * kChecksumBlockBytes;

class BatchReader {
 public:
  BatchReader(const std::vector<TensorRead>& reads, const ReadOptions& options)
      : reads_(reads),
        options_(options),
        schedule_(options.ended ? schedule_in_order(reads, options.verify) : schedule_reads(reads, options.verify)),
        delivery_(reads, schedule_.pieces, options) {
    if (options.count != nullptr) {
      for (const ReadBatch& batch : schedule_.batches) options.count->add_total(batch.end - batch.begin);
    }
    if (!options.ended) return;
    outcomes_ = std::make_unique<ReadOutcomes>(reads.size(), schedule_.pieces, delivery_, options.ended);
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
      if (outcomes_ && options_.interrupted && options_.interrupted()) {
        return Error(ErrorCode::kCancelled, "interrupted by the caller");
      }
      CAIRN_TRY(read_batch(schedule_.batches[next], buffer, stop));
    }
    return {};
  }

  Result<void> finish() const { return outcomes_ ? Result<void>() : delivery_.finish(); }

  std::uint64_t bytes_read() const { return bytes_read_.load(); }

 private:
  Result<void> read_batch(const ReadBatch& batch, os::PageBuffer& buffer, const os::StopFlag& stop) {
    const storage::ReadableFile& file = batch.file->bytes();
    const std::uint64_t length = batch.end - batch.begin;
    bytes_read_.fetch_add(length);
    const bool shared = batch.sharers.count > 1;
    const bool brings = shared && !file.is_cached(batch.begin, length);
    if (brings) file.prefetch(batch.begin, length);
    const bool cached = shared || better_from_cache(file, batch.begin, length, options_.direct_io);
    CAIRN_TRY(fill_targets(batch, cached, buffer, stop));
    if (options_.count != nullptr) options_.count->add_done(length);
    // A file without direct I/O is in the page cache after any read.
    if (brings && options_.brought != nullptr && file.direct_alignment()) {
      options_.brought->add(file, batch.begin, length);
    }
    return {};
  }

  Result<void> fill_targets(const ReadBatch& batch, bool cached, os::PageBuffer& buffer, const os::StopFlag& stop) {
    if (batch.piece_count == 1) {
      const ReadPiece& piece = schedule_.pieces[batch.first_piece];
      if (fits_target(reads_[piece.read], piece)) return end(piece, read_in_place(batch, piece, cached, buffer));
    }
    const Result<std::span<std::byte>> bytes =
        fetch_range(batch.file->bytes(), batch.begin, batch.end - batch.begin, cached, buffer);
    for (std::size_t i = 0; i < batch.piece_count; ++i) {
      const ReadPiece& piece = schedule_.pieces[batch.first_piece + i];
      if (!bytes) {
        CAIRN_TRY(end(piece, bytes.error()));
        continue;
      }
      const std::uint64_t offset = reads_[piece.read].stored().record_offset + piece.begin - batch.begin;
      CAIRN_TRY(end(piece, delivery_.deliver(piece, bytes->subspan(offset, piece.end - piece.begin), stop)));
    }
    return {};
  }

  // The outcome of a piece. A failure ends the call, unless the caller gets the outcome of each read.
  Result<void> end(const ReadPiece& piece, Result<void> outcome) {
    if (!outcomes_) return outcome;
    outcomes_->end(piece, outcome);
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
      return delivery_.check(piece, target);
    }
    std::span<std::byte> bytes;
    CAIRN_TRY_ASSIGN(bytes, fetch_range(file, batch.begin, target.size(), false, buffer));
    RecordCheck& record = delivery_.record_of(piece);
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
    // A step of a file behind a network would be a request.
    const bool is_near = file.requests_in_flight() == 0;
    const std::uint64_t step_bytes =
        is_near ? std::max(kCachedStepBytes, delivery_.record_of(piece).step()) : target.size();
    for (std::uint64_t done = 0; done < target.size(); done += step_bytes) {
      const auto step = target.subspan(done, std::min<std::uint64_t>(step_bytes, target.size() - done));
      CAIRN_TRY(file.read_at(offset + done, step));
      CAIRN_TRY(delivery_.check({piece.read, piece.begin + done, piece.begin + done + step.size()}, step));
    }
    return {};
  }

  const std::vector<TensorRead>& reads_;
  const ReadOptions& options_;
  ReadSchedule schedule_;
  PieceDelivery delivery_;
  std::unique_ptr<ReadOutcomes> outcomes_;  // null without options.ended
  std::atomic<std::size_t> next_batch_{0};
  std::atomic<std::uint64_t> bytes_read_{0};
};

// A caller that asks for one thread has reads that must not be carried out at the same time.
std::size_t useful_threads(const std::vector<TensorRead>& reads, const ReadOptions& options) {
  std::size_t threads = options.thread_count;
  if (threads <= 1 || options.buffer != nullptr) return threads;
  for (const TensorRead& read : reads) threads = std::max(threads, read.file().bytes().requests_in_flight());
  return threads;
}

}  // namespace

Result<ReadCounts> read_tensors(const std::vector<TensorRead>& reads, const ReadOptions& options) {
  BatchReader reader(reads, options);
  const std::size_t threads =
      std::clamp<std::size_t>(useful_threads(reads, options), 1, std::max<std::size_t>(reader.batch_count(), 1));
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

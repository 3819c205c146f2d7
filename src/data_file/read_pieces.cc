#include "data_file/read_pieces.h"

#include <algorithm>

#include "core/checked.h"
#include "core/checksum.h"

namespace cairn::data_file {
namespace {

// Reading this many unneeded bytes costs less than a second request.
constexpr std::uint64_t kGapBytesMax = 32 * 1024;
// The batches of a window that a sharer reads before the others do.
constexpr std::size_t kTurnBatches = 16;
static_assert(kPieceBytesMax % kChecksumBlockBytes == 0);

std::int64_t first_element_of(const StoredTensor& stored, const Extents& offsets) {
  auto element = static_cast<std::int64_t>(stored.first_element);
  for (std::size_t i = 0; i < offsets.size(); ++i) element += offsets[i] * stored.strides[i];
  return element;
}

// Takes ranges in ascending order, widens the ranges to whole checksum blocks, and cuts the result into pieces.
class PieceCutter {
 public:
  PieceCutter(std::vector<ReadPiece>& pieces, std::uint32_t read, const StoredTensor& stored)
      : pieces_(pieces),
        read_(read),
        record_bytes_(stored.record_bytes),
        block_bytes_(stored.block_crcs.empty() ? 0 : stored.block_bytes) {}

  void add(std::uint64_t begin, std::uint64_t end) {
    if (block_bytes_ != 0) {
      begin = align_down(begin, block_bytes_);
      end = std::min(align_up(end, block_bytes_), record_bytes_);
    }
    if (begin <= end_ + kGapBytesMax && end_ > begin_) {
      end_ = std::max(end_, end);
      return;
    }
    flush();
    begin_ = begin;
    end_ = end;
  }

  void flush() {
    for (std::uint64_t begin = begin_; begin < end_;) {
      // Cuts at multiples of the checksum block's size: every block lies in exactly one piece.
      const std::uint64_t block = block_bytes_ == 0 ? kChecksumBlockBytes : block_bytes_;
      const std::uint64_t cut = std::min(align_down(begin, block) + kPieceBytesMax, end_);
      pieces_.push_back({read_, begin, cut});
      begin = cut;
    }
    begin_ = end_ = 0;
  }

 private:
  std::vector<ReadPiece>& pieces_;
  std::uint32_t read_;
  std::uint64_t record_bytes_;
  std::uint64_t block_bytes_;  // divides kPieceBytesMax; 0: no checksums per block
  std::uint64_t begin_ = 0;
  std::uint64_t end_ = 0;
};

void cut_read(const TensorRead& read, std::uint32_t index, Verify verify, std::vector<ReadPiece>& pieces) {
  if (read.bytes_needed() == 0) return;
  PieceCutter cutter(pieces, index, read.stored());
  const Region& region = read.region();
  const bool whole = verify == Verify::kFull && read.stored().record_crc.has_value();
  if (whole) {
    cutter.add(0, read.stored().record_bytes);
  } else if (region.run_count() == 1) {
    cutter.add(read.span_begin(), read.span_end());
  } else {
    const std::uint64_t item = read.item_size();
    const std::int64_t reach = (region.run_length() - 1) * region.file_step() + 1;
    for (std::int64_t i = 0; i < region.run_count(); ++i) {
      const std::int64_t begin = read.first_element() + region.run(i).file_offset;
      cutter.add(static_cast<std::uint64_t>(begin) * item, static_cast<std::uint64_t>(begin + reach) * item);
    }
  }
  cutter.flush();
}

// Cuts reads into pieces, and groups neighbouring pieces into batches.
class Scheduler {
 public:
  explicit Scheduler(const std::vector<TensorRead>& reads) : reads_(reads) {}

  // `bytes_max(first, next)`: the most bytes of a batch that begins with piece `first` and gets piece `next`.
  template <typename BytesMax>
  ReadSchedule schedule(Verify verify, const BytesMax& bytes_max) const {
    ReadSchedule schedule;
    for (std::size_t i = 0; i < reads_.size(); ++i) {
      cut_read(reads_[i], static_cast<std::uint32_t>(i), verify, schedule.pieces);
    }
    std::sort(schedule.pieces.begin(), schedule.pieces.end(), [&](const ReadPiece& a, const ReadPiece& b) {
      const DataFile& file_a = file_of(a);
      const DataFile& file_b = file_of(b);
      // Not by the files' addresses: of two reads into the same memory, the later one must be the same on every rank.
      if (const int order = file_a.name().compare(file_b.name()); order != 0) return order < 0;
      return offset_of(a) != offset_of(b) ? offset_of(a) < offset_of(b) : a.read < b.read;
    });
    for (std::size_t i = 0; i < schedule.pieces.size(); ++i) {
      const ReadPiece& piece = schedule.pieces[i];
      if (!schedule.batches.empty()) {
        ReadBatch& last = schedule.batches.back();
        const ReadPiece& first = schedule.pieces[last.first_piece];
        if (fits_batch(last, first, piece, bytes_max(first, piece))) {
          extend(last, piece);
          continue;
        }
      }
      const TensorRead& read = reads_[piece.read];
      schedule.batches.push_back(
          {&read.file(), offset_of(piece), end_of(piece), i, 1, read.sharers(), read.keeps_order()});
    }
    return schedule;
  }

 private:
  const DataFile& file_of(const ReadPiece& piece) const { return reads_[piece.read].file(); }
  std::uint64_t offset_of(const ReadPiece& piece) const {
    return reads_[piece.read].stored().record_offset + piece.begin;
  }
  std::uint64_t end_of(const ReadPiece& piece) const { return offset_of(piece) + (piece.end - piece.begin); }
  bool is_final(const ReadPiece& piece) const { return reads_[piece.read].stored().is_final(); }

  bool fits_batch(const ReadBatch& batch, const ReadPiece& first, const ReadPiece& piece,
                  std::uint64_t bytes_max) const {
    // Elements that need a conversion are converted inside the buffer. No other read of the file may share the
    // buffer: neither a read before them nor a read after them.
    const bool final = is_final(piece) && is_final(first);
    const bool near = final && batch.file == &file_of(piece) && offset_of(piece) <= batch.end + kGapBytesMax;
    return near && std::max(batch.end, end_of(piece)) - batch.begin <= bytes_max;
  }

  void extend(ReadBatch& batch, const ReadPiece& piece) const {
    const TensorRead& read = reads_[piece.read];
    batch.end = std::max(batch.end, end_of(piece));
    ++batch.piece_count;
    if (read.sharers().count > batch.sharers.count) batch.sharers = read.sharers();
    batch.keeps_order |= read.keeps_order();
  }

  const std::vector<TensorRead>& reads_;
};

// Puts shared batches first, and lets each sharer begin each window at its own place.
void take_turns(std::vector<ReadBatch>& batches) {
  const auto takes_turns = [](const ReadBatch& it) { return it.sharers.count > 1 && !it.keeps_order; };
  const auto end = std::stable_partition(batches.begin(), batches.end(), takes_turns);
  std::sort(batches.begin(), end, [](const ReadBatch& a, const ReadBatch& b) {
    if (a.sharers.count != b.sharers.count) return a.sharers.count > b.sharers.count;
    if (a.sharers.place != b.sharers.place) return a.sharers.place < b.sharers.place;
    const int order = a.file->name().compare(b.file->name());
    return order != 0 ? order < 0 : a.begin < b.begin;
  });
  for (auto begin = batches.begin(); begin != end;) {
    const Sharers sharers = begin->sharers;
    const auto window = static_cast<std::ptrdiff_t>(kTurnBatches * sharers.count);
    const auto others = std::find_if(begin, end, [&](const ReadBatch& it) { return it.sharers != sharers; });
    const std::ptrdiff_t length = std::min(window, others - begin);
    std::rotate(begin, begin + length * sharers.place / sharers.count, begin + length);
    begin += length;
  }
}

}  // namespace

TensorRead::TensorRead(const DataFile& file, std::string_view key, StoredTensor stored, const Extents& offsets,
                       TensorView target)
    : file_(&file),
      key_(key),
      stored_(std::move(stored)),
      target_(std::move(target)),
      region_(target_.sizes, stored_.strides, target_.strides),
      first_element_(first_element_of(stored_, offsets)) {}

bool fits_target(const TensorRead& read, const ReadPiece& piece) {
  return read.target().device.is_cpu() && read.is_plain_copy() && piece.begin >= read.span_begin() &&
         piece.end <= read.span_end();
}

namespace {

ReadSchedule schedule_by_offset(const std::vector<TensorRead>& reads, Verify verify) {
  return Scheduler(reads).schedule(verify, [&](const ReadPiece& a, const ReadPiece& b) {
    // A batch of several pieces goes through a buffer: a large piece that fits its target stays alone.
    const bool fits = fits_target(reads[a.read], a) || fits_target(reads[b.read], b);
    return fits ? kPieceBytesMax : kBatchBytesMax;
  });
}

}  // namespace

ReadSchedule schedule_in_order(const std::vector<TensorRead>& reads, Verify verify) {
  ReadSchedule schedule = schedule_by_offset(reads, verify);
  const auto first_read = [&](const ReadBatch& batch) {
    std::uint32_t first = UINT32_MAX;
    for (std::size_t i = 0; i < batch.piece_count; ++i) {
      first = std::min(first, schedule.pieces[batch.first_piece + i].read);
    }
    return first;
  };
  std::stable_sort(schedule.batches.begin(), schedule.batches.end(),
                   [&](const ReadBatch& a, const ReadBatch& b) { return first_read(a) < first_read(b); });
  return schedule;
}

ReadSchedule schedule_reads(const std::vector<TensorRead>& reads, Verify verify) {
  ReadSchedule schedule = schedule_by_offset(reads, verify);
  take_turns(schedule.batches);
  return schedule;
}

ReadSchedule schedule_windows(const std::vector<TensorRead>& reads, Verify verify) {
  return Scheduler(reads).schedule(verify, [](const ReadPiece&, const ReadPiece&) { return kWindowBytesMax; });
}

}  // namespace cairn::data_file

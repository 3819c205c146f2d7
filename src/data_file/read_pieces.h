// Read pieces: the byte ranges of data files needed for a set of tensor reads, cut and grouped into requests.
//
// Pure: no file is read here.
#pragma once

#include <cairn/options.h>
#include <cairn/tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/region.h"
#include "data_file/data_file.h"

namespace cairn::data_file {

// The processes of one host that make a common read, and the place of this process among them.
struct Sharers {
  std::uint32_t count = 1;
  std::uint32_t place = 0;  // below `count`
  friend bool operator==(const Sharers&, const Sharers&) = default;
};

// The read of a box of a saved chunk into memory. File, key and target must outlive the read.
class TensorRead {
 public:
  // `offsets` is the begin of the requested box in the saved chunk. The box has the sizes of `target`.
  TensorRead(const DataFile& file, std::string_view key, StoredTensor stored, const Extents& offsets,
             TensorView target);

  const DataFile& file() const { return *file_; }
  std::string_view key() const { return key_; }
  const StoredTensor& stored() const { return stored_; }
  const TensorView& target() const { return target_; }
  const Region& region() const { return region_; }
  const Sharers& sharers() const { return sharers_; }
  void set_sharers(const Sharers& sharers) { sharers_ = sharers; }
  // Whether the read's batches take no turns: for reads whose targets share memory.
  bool keeps_order() const { return keeps_order_; }
  void keep_order() { keeps_order_ = true; }
  std::size_t item_size() const { return item_bytes(stored_.dtype); }
  // The requested box's first element, in elements from the record's first byte.
  std::int64_t first_element() const { return first_element_; }
  // The bytes of the record from the box's first element to the box's last element.
  std::uint64_t span_begin() const { return static_cast<std::uint64_t>(first_element_) * item_size(); }
  std::uint64_t span_end() const {
    return static_cast<std::uint64_t>(first_element_ + region_.file_extent()) * item_size();
  }
  std::uint64_t bytes_needed() const { return static_cast<std::uint64_t>(region_.element_count()) * item_size(); }
  bool converts() const { return target_.dtype != stored_.dtype; }
  // Whether the requested bytes are contiguous both in the file and in memory, and need no conversion.
  bool is_plain_copy() const { return region_.is_linear() && !converts() && stored_.is_final(); }

 private:
  const DataFile* file_;
  std::string_view key_;
  StoredTensor stored_;
  TensorView target_;
  Region region_;
  std::int64_t first_element_;
  Sharers sharers_;
  bool keeps_order_ = false;
};

// The bytes [begin, end) of the record of a read. If the record has checksums per block, a piece consists of whole
// checksum blocks.
struct ReadPiece {
  std::uint32_t read;
  std::uint64_t begin;
  std::uint64_t end;
};

// Whether the bytes of the piece, when the piece is fetched alone, can be read into the target: the target is in the
// memory of the CPU and has a place for every byte of the piece, in the file's order.
bool fits_target(const TensorRead& read, const ReadPiece& piece);

// Neighbouring pieces of a file that a single request fetches: [begin, end) of the file.
struct ReadBatch {
  const DataFile* file;
  std::uint64_t begin;
  std::uint64_t end;
  std::size_t first_piece;
  std::size_t piece_count;
  Sharers sharers;   // of one of the pieces; the largest count
  bool keeps_order;  // a piece's read keeps the order
};

// The most bytes of a piece: few enough for the buffers of several requests to stay in the processor's cache between
// the device and the check, and enough for a network file system to divide a request.
inline constexpr std::uint64_t kPieceBytesMax = 2 * 1024 * 1024;
// The most bytes that a batch spans. A range of kPieceBytesMax bytes, widened to whole checksum blocks of 64 KiB, is a
// single request. Batches of pieces that fit their targets span at most kPieceBytesMax bytes.
inline constexpr std::uint64_t kBatchBytesMax = kPieceBytesMax + 256 * 1024;

struct ReadSchedule {
  std::vector<ReadPiece> pieces;  // ordered by file and offset
  std::vector<ReadBatch> batches;
};
// Batches are ordered by file and offset, with the exception of shared batches that need not keep the order. These come
// first, in windows, and all sharers read the windows in the same order. In a window each sharer begins at a different
// place: each brings a part of the window into the page cache, and finds the parts of the others there. No sharer waits
// for another sharer.
ReadSchedule schedule_reads(const std::vector<TensorRead>& reads, Verify verify);

// As schedule_reads(), but a batch comes where the first of its reads is in `reads`, and no batch takes a turn.
ReadSchedule schedule_in_order(const std::vector<TensorRead>& reads, Verify verify);

// The most bytes of a window: enough for a broadcast to cost more than its latency, and few enough for the broadcasts
// of a window to pass through a tree of ranks one behind the other.
inline constexpr std::uint64_t kWindowBytesMax = 4 * 1024 * 1024;
// Batches for a broadcast (windows): at most kWindowBytesMax bytes each, ordered by the names of the files and the
// offsets, and therefore equal on all ranks with equal reads.
ReadSchedule schedule_windows(const std::vector<TensorRead>& reads, Verify verify);

}  // namespace cairn::data_file

// Trailer: the end of a data file written by Cairn: an index of the file's items, and a checksum for every byte before
// the trailer.
//
// Values; safe to read from several threads. docs/format.md has the bytes. A trailer is checked against its own
// checksums and against the file's size before the caller gets the trailer.
#pragma once

#include "core/byte_source.h"

#include <cairn/catalog.h>
#include <cairn/result.h>
#include <cairn/state_dict.h>
#include <cairn/tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace cairn::manifest {

// The place of an item, in bytes from the start of the file.
struct ItemRange {
  std::uint64_t item_offset = 0;
  std::uint64_t item_length = 0;
  std::uint64_t payload_offset = 0;  // the payload lies inside the item
  std::uint64_t payload_length = 0;
  friend bool operator==(const ItemRange&, const ItemRange&) = default;
};

struct TrailerItem {
  enum class Kind : std::uint8_t { kTensor = 0, kValue = 1, kSerializedTensor = 2 };

  std::string fqn;
  Path path;  // empty if the state dict was flat
  Kind kind = Kind::kTensor;
  // Without meaning for a value: dtype, requires_grad, global_shape and box.
  DType dtype = DType::kFloat32;
  bool requires_grad = false;
  Extents global_shape;
  Box box;
  ItemRange range;  // the payload of a value or a serialised tensor is the whole item
};

struct TrailerIndex {
  SaveId save_id;
  std::uint32_t rank = 0;
  std::uint32_t file_number = 0;   // among the rank's files of this save
  std::uint32_t file_count = 0;    // number of files of the whole save; 0 if unknown when the file was written
  std::vector<TrailerItem> items;  // ascending by offset, not overlapping
};

// Which bytes each checksum of the table covers. First, item by item, a checksum for each 64 KiB block of the payload.
// Then a checksum for each frame: frame i is the bytes between the payloads of items i-1 and i, the first frame begins
// at offset 0, and the last frame ends at the trailer. Every byte before the trailer is covered by exactly one
// checksum.
class ChecksumSlots {
 public:
  ChecksumSlots() = default;
  // Slots are counted from 0; `item` is an index into the items, `frame` is at most the number of items.
  std::uint64_t first_block(std::size_t item) const { return first_blocks_[item]; }
  std::uint64_t block_count(std::size_t item) const { return first_blocks_[item + 1] - first_blocks_[item]; }
  std::uint64_t frame(std::size_t frame) const { return first_blocks_.back() + frame; }
  std::uint64_t count() const { return first_blocks_.back() + first_blocks_.size(); }
  std::size_t item_count() const { return first_blocks_.size() - 1; }
  // Appends the slots of the next item. Call once per item, in file order.
  void append(std::uint64_t payload_length);

 private:
  std::vector<std::uint64_t> first_blocks_{0};  // per item, and the end of the last
};

// The trailer of a file to be written, without the checksums.
class TrailerLayout {
 public:
  // `trailer_offset` is the offset of the trailer: the last item's end, or later. Fails with kInvalidArgument if items
  // are out of order, overlap, or reach beyond `trailer_offset`.
  static Result<TrailerLayout> make(const TrailerIndex& index, std::uint64_t trailer_offset);

  std::uint64_t trailer_offset() const { return trailer_offset_; }
  std::uint64_t trailer_bytes() const;
  std::uint64_t file_bytes() const { return trailer_offset_ + trailer_bytes(); }
  const ChecksumSlots& slots() const { return slots_; }
  std::uint64_t checksum_count() const { return slots_.count(); }
  // The index does not hold the save id: a layout serves many saves.
  void set_save_id(SaveId save_id) { save_id_ = save_id; }

  // `checksums` has checksum_count() values, `out` has trailer_bytes() bytes. Returns the trailer checksum, which the
  // commit record holds.
  std::uint32_t render(std::span<const std::uint32_t> checksums, std::span<std::byte> out) const;

 private:
  SaveId save_id_;
  std::uint32_t rank_ = 0;
  std::uint64_t trailer_offset_ = 0;
  std::string index_;  // encoded
  ChecksumSlots slots_;
};

// The trailer of an existing file. Keeps the index encoded: an item costs 48 bytes and its encoding.
class Trailer {
 public:
  SaveId save_id() const { return save_id_; }
  std::uint32_t rank() const { return rank_; }
  std::uint32_t file_number() const { return file_number_; }
  std::uint32_t file_count() const { return file_count_; }
  std::uint64_t trailer_offset() const { return trailer_offset_; }
  // The checksum of the whole trailer. The commit record holds this value for the file.
  std::uint32_t checksum() const { return checksum_; }

  std::size_t item_count() const { return ranges_.size(); }
  const ItemRange& range(std::size_t item) const { return ranges_[item]; }
  // Decodes item `item` of the index.
  TrailerItem item(std::size_t item) const;
  // The index of the item at offset `item_offset` of the file; nullopt if no item begins at `item_offset`.
  std::optional<std::size_t> item_at(std::uint64_t item_offset) const;

  const ChecksumSlots& slots() const { return slots_; }
  std::span<const std::uint32_t> checksums() const { return checksums_; }
  // A checksum for each 64 KiB block of the item's payload.
  std::span<const std::uint32_t> block_checksums(std::size_t item) const;
  // The CRC of the bytes [frame_begin(frame), frame_end(frame)): from the end of payload frame-1 (0 for the first
  // frame) to the start of payload `frame` (the trailer for the last frame).
  std::uint32_t frame_checksum(std::size_t frame) const { return checksums_[slots_.frame(frame)]; }
  std::uint64_t frame_begin(std::size_t frame) const;
  std::uint64_t frame_end(std::size_t frame) const;

 private:
  friend class TrailerReader;
  SaveId save_id_;
  std::uint32_t rank_ = 0;
  std::uint32_t file_number_ = 0;
  std::uint32_t file_count_ = 0;
  std::uint32_t checksum_ = 0;
  std::uint64_t trailer_offset_ = 0;
  std::string index_;                       // encoded
  std::vector<std::uint64_t> item_places_;  // in index_
  std::vector<ItemRange> ranges_;
  ChecksumSlots slots_;
  std::vector<std::uint32_t> checksums_;
};

// Nullopt if the file does not end in a trailer: stock torch wrote the file. kCorrupt if the trailer is damaged or
// contradicts the file's size, kUnsupported if a later version of Cairn wrote the trailer.
Result<std::optional<Trailer>> read_trailer(const ByteSource& file);

// The contents of the footer, the last 64 bytes of a file. read_trailer_footer() reads and checks only these 64 bytes,
// with the errors of read_trailer().
struct TrailerFooter {
  SaveId save_id;
  std::uint32_t rank = 0;
  std::uint32_t checksum = 0;
  std::uint64_t trailer_offset = 0;
};
Result<std::optional<TrailerFooter>> read_trailer_footer(const ByteSource& file);

}  // namespace cairn::manifest

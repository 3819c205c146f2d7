// Trailer: the end of a data file that Cairn wrote: an index of its items and a checksum for every byte before it.
//
// Values; safe to read from several threads. docs/format.md has the bytes. What is read is checked against its own
// checksums and against the file's size before it is returned.
#pragma once

#include "core/byte_source.h"

#include <cairn/box.h>
#include <cairn/catalog.h>
#include <cairn/dtype.h>
#include <cairn/result.h>
#include <cairn/state_dict.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace cairn::manifest {

// Where an item lies, in bytes from the start of the file.
struct ItemExtent {
  std::uint64_t item_offset = 0;
  std::uint64_t item_length = 0;
  std::uint64_t payload_offset = 0;  // the payload lies inside the item
  std::uint64_t payload_length = 0;
  friend bool operator==(const ItemExtent&, const ItemExtent&) = default;
};

struct TrailerItem {
  enum class Kind : std::uint8_t { kTensor = 0, kValue = 1, kSerializedTensor = 2 };

  std::string fqn;
  Path path;  // empty if the state dict was flat
  Kind kind = Kind::kTensor;
  // The next four say nothing if it is a value.
  DType dtype = DType::kFloat32;
  bool requires_grad = false;
  Extents global_shape;
  Box box;
  ItemExtent extent;  // the payload of a value or a serialised tensor is the whole item
};

struct TrailerIndex {
  SaveId save_id;
  std::uint32_t rank = 0;
  std::uint32_t file_number = 0;   // among the rank's files of this save
  std::uint32_t file_count = 0;    // of the whole save; 0 if nobody knew when this file was written
  std::vector<TrailerItem> items;  // ascending by offset, not overlapping
};

// Which checksum of the table covers what. Per item, in order, one for each 64 KiB chunk of its payload; then one for
// each frame: frame i is what lies between the payloads of items i-1 and i, the first begins at 0, the last ends at the
// trailer. So every byte before the trailer is covered by exactly one.
class ChecksumSlots {
 public:
  ChecksumSlots() = default;
  // Slots are counted from 0; `item` is an index into the items, `frame` is at most the number of items.
  std::uint64_t first_chunk(std::size_t item) const { return first_chunks_[item]; }
  std::uint64_t chunk_count(std::size_t item) const { return first_chunks_[item + 1] - first_chunks_[item]; }
  std::uint64_t frame(std::size_t frame) const { return first_chunks_.back() + frame; }
  std::uint64_t count() const { return first_chunks_.back() + first_chunks_.size(); }
  std::size_t item_count() const { return first_chunks_.size() - 1; }
  // Takes the items in order.
  void append(std::uint64_t payload_length);

 private:
  std::vector<std::uint64_t> first_chunks_{0};  // per item, and the end of the last
};

// The trailer of a file that is yet to be written: all but the checksums.
class TrailerLayout {
 public:
  // `trailer_offset` is where the trailer begins: at or behind the last item's end. Fails with kInvalidArgument if
  // items are out of order, overlap, or do not fit before the trailer.
  static Result<TrailerLayout> make(const TrailerIndex& index, std::uint64_t trailer_offset);

  std::uint64_t trailer_offset() const { return trailer_offset_; }
  std::uint64_t trailer_bytes() const;
  std::uint64_t file_bytes() const { return trailer_offset_ + trailer_bytes(); }
  const ChecksumSlots& slots() const { return slots_; }
  std::uint64_t checksum_count() const { return slots_.count(); }
  // The index does not hold the save id, so a layout serves many saves.
  void set_save_id(SaveId save_id) { save_id_ = save_id; }

  // `checksums` has checksum_count() values, `out` trailer_bytes(). Returns the checksum that the commit record holds.
  std::uint32_t render(std::span<const std::uint32_t> checksums, std::span<std::byte> out) const;

 private:
  SaveId save_id_;
  std::uint32_t rank_ = 0;
  std::uint64_t trailer_offset_ = 0;
  std::string index_;  // encoded
  ChecksumSlots slots_;
};

// The trailer of a file that was read. Keeps the index encoded; an item costs 48 bytes and its encoding.
class Trailer {
 public:
  SaveId save_id() const { return save_id_; }
  std::uint32_t rank() const { return rank_; }
  std::uint32_t file_number() const { return file_number_; }
  std::uint32_t file_count() const { return file_count_; }
  std::uint64_t trailer_offset() const { return trailer_offset_; }
  // What the commit record holds for this file: it covers the whole trailer.
  std::uint32_t checksum() const { return checksum_; }

  std::size_t item_count() const { return extents_.size(); }
  const ItemExtent& extent(std::size_t item) const { return extents_[item]; }
  // Decodes item `item` of the index.
  TrailerItem item(std::size_t item) const;
  // The item that begins at this offset of the file.
  std::optional<std::size_t> item_at(std::uint64_t item_offset) const;

  const ChecksumSlots& slots() const { return slots_; }
  std::span<const std::uint32_t> checksums() const { return checksums_; }
  // One for each 64 KiB of the item's payload.
  std::span<const std::uint32_t> chunk_checksums(std::size_t item) const;
  // Of the bytes from the end of payload frame-1 (0 for the first) to the start of payload `frame` (the trailer for the
  // last).
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
  std::vector<ItemExtent> extents_;
  ChecksumSlots slots_;
  std::vector<std::uint32_t> checksums_;
};

// Nullopt if the file does not end in a trailer (stock torch wrote it). kCorrupt if the trailer is damaged or
// contradicts the file's size, kUnsupported if a later version wrote it.
Result<std::optional<Trailer>> read_trailer(const ByteSource& file);

// What the last 64 bytes of a file say by themselves. Same errors, but only these bytes are read and checked.
struct TrailerFooter {
  SaveId save_id;
  std::uint32_t rank = 0;
  std::uint32_t checksum = 0;
  std::uint64_t trailer_offset = 0;
};
Result<std::optional<TrailerFooter>> read_trailer_footer(const ByteSource& file);

}  // namespace cairn::manifest

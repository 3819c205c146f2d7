// FileImage: the layout of one data file, known before a byte of it is written: a list of items, each with its place.
//
// Immutable but for its save id. A file is, in this order: frames and payloads in turn, and the trailer. A payload is a
// tensor's elements, or a serialised value; a frame is what lies between two payloads: the end of one zip, a gap of
// zeros, the head of the next. Only payloads and checksums are unknown at plan time; ImageComposer fills them in. The
// tensors' memory stays the caller's.
#pragma once

#include <cairn/result.h>
#include <cairn/state_dict.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/region.h"
#include "data_file/item_placement.h"
#include "format/manifest/trailer.h"
#include "format/torch_file/tensor_item.h"

namespace cairn::data_file {

// What becomes an item: an entry's tensor chunk, or ready bytes. Views: their owners outlive the image.
struct ItemSource {
  const Entry* entry = nullptr;
  const TensorEntry* tensor = nullptr;  // null if `bytes` is the item
  std::string_view bytes;               // a whole archive
  manifest::TrailerItem::Kind kind = manifest::TrailerItem::Kind::kTensor;
};

// Makes `item` what a trailer's index says of the source, but for its place. One `item` may serve many sources.
Result<void> describe(const ItemSource& source, manifest::TrailerItem& item);

struct ImageIdentity {
  SaveId save_id;
  std::uint32_t rank = 0;
  std::uint32_t file_number = 0;
  std::uint32_t file_count = 1;
};

// Where the items of a file will lie: all that its trailer's index says.
struct LaidOutFile {
  manifest::TrailerIndex index;
  std::uint64_t file_bytes = 0;
};

class FileImage {
 public:
  static Result<FileImage> make(const ImageIdentity& identity, std::span<const ItemSource> sources);
  static Result<LaidOutFile> lay_out(const ImageIdentity& identity, std::span<const ItemSource> sources);
  // The image of a file whose payloads lie in `staged` already, where the index says. kInvalidArgument if the index is
  // not one of lay_out(), or if `staged` has less room than the file.
  static Result<FileImage> of_staged(const manifest::TrailerIndex& index, std::span<const std::byte> staged);

  FileImage(FileImage&&) noexcept = default;
  FileImage& operator=(FileImage&&) noexcept = default;

  // Of the save that the file will say it is of: one index serves many.
  void set_save_id(SaveId save_id) { trailer_.set_save_id(save_id); }

  std::uint64_t file_bytes() const { return trailer_.file_bytes(); }
  const manifest::TrailerLayout& trailer() const { return trailer_; }

  std::size_t item_count() const { return items_.size(); }
  const manifest::ItemExtent& extent(std::size_t item) const { return items_[item].extent; }
  // Frame `frame` lies before payload `frame`; the last one before the trailer.
  std::uint64_t frame_begin(std::size_t frame) const {
    return frame == 0 ? 0 : items_[frame - 1].extent.payload_offset + items_[frame - 1].extent.payload_length;
  }
  std::uint64_t frame_end(std::size_t frame) const {
    return frame == items_.size() ? trailer_.trailer_offset() : items_[frame].extent.payload_offset;
  }
  // The first item whose payload ends beyond this offset; item_count() if there is none.
  std::size_t first_item_beyond(std::uint64_t offset) const;

  // The bytes [begin, begin + out.size()) of an item's payload; both multiples of 64, but for the payload's end.
  void read_payload(std::size_t item, std::uint64_t begin, std::span<std::byte> out) const;
  // The same, if they lie in one stretch of memory.
  std::optional<std::span<const std::byte>> view_payload(std::size_t item, std::uint64_t begin,
                                                         std::uint64_t length) const;
  // The whole frame, given the CRC of the payload before it (0 for the first).
  void render_frame(std::size_t frame, std::uint32_t previous_payload_crc, std::span<std::byte> out) const;

 private:
  struct Item {
    manifest::ItemExtent extent;
    torch_file::TensorItemLayout layout;  // of a tensor
    const TensorView* tensor = nullptr;
    const std::byte* contiguous = nullptr;  // the payload, if it lies in one stretch
    std::optional<Region> region;           // else how to gather it
  };
  FileImage() = default;
  static Result<Item> place_tensor_item(const TensorView& tensor, std::uint64_t cursor);
  static Result<Item> place_bytes_item(std::string_view bytes, std::uint64_t cursor);
  Result<void> add(const ItemSource& source, manifest::TrailerIndex& index);
  Result<void> finish(const manifest::TrailerIndex& index);

  std::vector<Item> items_;
  std::vector<TensorView> staged_;  // what the items look at, if nobody else has it
  manifest::TrailerLayout trailer_;
};

}  // namespace cairn::data_file

// FileImage: the layout of a data file, known before the first byte is written: a list of items, each with its place.
//
// Immutable except for the save id. A file is an alternation of frames and payloads, and then the trailer. A payload is
// a tensor's elements, or a serialised value. A frame is the bytes between two payloads: the end of a zip archive, a
// gap of zeros, the head of the next archive. Only payloads and checksums are unknown at plan time; ImageComposer fills
// in both. The tensors' memory belongs to the caller.
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

// The source of an item: an entry's tensor chunk, or ready bytes. All members are views: the owners must outlive the
// image.
struct ItemSource {
  const Entry* entry = nullptr;
  const TensorEntry* tensor = nullptr;  // null if `bytes` is the item
  std::string_view bytes;               // a whole archive
  manifest::TrailerItem::Kind kind = manifest::TrailerItem::Kind::kTensor;
};

// Fills `item` with everything in a trailer's index entry except the place. The caller may reuse `item` for many
// sources.
Result<void> describe(const ItemSource& source, manifest::TrailerItem& item);

struct ImageIdentity {
  SaveId save_id;
  std::uint32_t rank = 0;
  std::uint32_t file_number = 0;
  std::uint32_t file_count = 1;
};

// The places of a file's items: the whole index of the file's trailer.
struct LaidOutFile {
  manifest::TrailerIndex index;
  std::uint64_t file_bytes = 0;
};

class FileImage {
 public:
  static Result<FileImage> make(const ImageIdentity& identity, std::span<const ItemSource> sources);
  static Result<LaidOutFile> lay_out(const ImageIdentity& identity, std::span<const ItemSource> sources);
  // The image of a file whose payloads are already in `staged`, at the places in the index. kInvalidArgument if the
  // places are not those of lay_out(), or if `staged` is smaller than the file.
  static Result<FileImage> of_staged(const manifest::TrailerIndex& index, std::span<const std::byte> staged);

  FileImage(FileImage&&) noexcept = default;
  FileImage& operator=(FileImage&&) noexcept = default;

  // Sets the save id in the file's trailer: one index serves many saves.
  void set_save_id(SaveId save_id) { trailer_.set_save_id(save_id); }

  std::uint64_t file_bytes() const { return trailer_.file_bytes(); }
  const manifest::TrailerLayout& trailer() const { return trailer_; }

  std::size_t item_count() const { return items_.size(); }
  const manifest::ItemRange& range(std::size_t item) const { return items_[item].range; }
  // Frame `frame` lies before payload `frame`; the last frame lies before the trailer.
  std::uint64_t frame_begin(std::size_t frame) const {
    return frame == 0 ? 0 : items_[frame - 1].range.payload_offset + items_[frame - 1].range.payload_length;
  }
  std::uint64_t frame_end(std::size_t frame) const {
    return frame == items_.size() ? trailer_.trailer_offset() : items_[frame].range.payload_offset;
  }
  // The first item whose payload ends beyond `offset`; item_count() if no payload does.
  std::size_t first_item_beyond(std::uint64_t offset) const;

  // Copies the bytes [begin, begin + out.size()) of an item's payload. Both bounds are multiples of 64, except at the
  // payload's end.
  void read_payload(std::size_t item, std::uint64_t begin, std::span<std::byte> out) const;
  // A view of the bytes [begin, begin + length) of the payload, if the payload is contiguous in memory.
  std::optional<std::span<const std::byte>> view_payload(std::size_t item, std::uint64_t begin,
                                                         std::uint64_t length) const;
  // Renders the whole frame. `previous_payload_crc` is the CRC of the payload before the frame (0 for the first frame).
  void render_frame(std::size_t frame, std::uint32_t previous_payload_crc, std::span<std::byte> out) const;

 private:
  struct Item {
    manifest::ItemRange range;
    torch_file::TensorItemLayout layout;  // of a tensor
    const TensorView* tensor = nullptr;
    const std::byte* contiguous = nullptr;  // the payload, if contiguous in memory
    std::optional<Region> region;           // otherwise, how to gather the payload
  };
  FileImage() = default;
  static Result<Item> place_tensor_item(const TensorView& tensor, std::uint64_t cursor);
  static Result<Item> place_bytes_item(std::string_view bytes, std::uint64_t cursor);
  Result<void> add(const ItemSource& source, manifest::TrailerIndex& index);
  Result<void> finish(const manifest::TrailerIndex& index);

  std::vector<Item> items_;
  std::vector<TensorView> staged_;  // the tensors to which items point, in an image made by of_staged()
  manifest::TrailerLayout trailer_;
};

}  // namespace cairn::data_file

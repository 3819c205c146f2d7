// FileImage: the image of a data file: a list of items, each with its place.
//
// Immutable except for the save id. The payload of an item is a tensor's elements, or a serialised value. A frame is
// the end of a zip archive, a gap of zeros, and the head of the next archive. A tensor whose data is null or on a
// device is a payload without memory (image.h).
#pragma once

#include <cairn/result.h>
#include <cairn/state_dict.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "data_file/image.h"
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

class FileImage final : public Image {
 public:
  static Result<FileImage> make(const ImageIdentity& identity, std::span<const ItemSource> sources);
  static Result<LaidOutFile> lay_out(const ImageIdentity& identity, std::span<const ItemSource> sources);
  // The image of a file whose payloads are already in `staged`, at the places in the index. kInvalidArgument if the
  // places are not those of lay_out(), or if `staged` is smaller than the file.
  static Result<FileImage> of_staged(const manifest::TrailerIndex& index, std::span<const std::byte> staged);

  // Sets the save id in the file's trailer: one index serves many saves.
  void set_save_id(SaveId save_id) { trailer_.set_save_id(save_id); }

  std::uint64_t trailer_offset() const override { return trailer_.trailer_offset(); }
  std::uint64_t trailer_bytes() const override { return trailer_.trailer_bytes(); }
  // Payload `item` is the payload of the item.
  std::size_t item_count() const { return items_.size(); }
  const manifest::ItemRange& range(std::size_t item) const { return items_[item].range; }

  void render_frame(std::size_t frame, std::uint32_t previous_payload_crc, std::span<std::byte> out) const override;
  // Returns the trailer checksum, which the commit record holds.
  std::uint32_t render_trailer(std::span<const std::uint32_t> checksums, std::span<std::byte> out) const override {
    return trailer_.render(checksums, out);
  }

 private:
  struct Item {
    manifest::ItemRange range;
    torch_file::TensorItemLayout layout;  // of a tensor
    const TensorView* tensor = nullptr;
  };
  FileImage() = default;
  std::uint64_t end() const;
  Result<void> add_tensor_item(const TensorView& tensor);
  Result<void> add_bytes_item(std::string_view bytes);
  Result<void> add(const ItemSource& source, manifest::TrailerIndex& index);
  Result<void> finish(const manifest::TrailerIndex& index);

  std::vector<Item> items_;
  std::vector<TensorView> staged_;  // the tensors to which items point, in an image made by of_staged()
  manifest::TrailerLayout trailer_;
};

}  // namespace cairn::data_file

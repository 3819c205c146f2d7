#include "transfer/file_image.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "core/checked.h"

namespace cairn::transfer {
namespace {

torch_file::TensorItem item_of(const TensorEntry& tensor) { return {tensor.local.dtype, tensor.local.sizes}; }

}  // namespace

Result<void> describe(const ItemSource& source, manifest::TrailerItem& item) {
  item.fqn = source.entry->fqn;
  item.path = source.entry->path;
  item.kind = source.kind;
  if (source.tensor != nullptr) {
    item.dtype = source.tensor->local.dtype;
    item.requires_grad = source.tensor->traits.requires_grad;
    item.global_shape = source.tensor->global_shape;
    item.box = source.tensor->box;
  } else if (const auto* tensor = std::get_if<SerializedTensor>(&source.entry->content)) {
    item.dtype = tensor->dtype;
    item.requires_grad = tensor->requires_grad;
    item.global_shape = tensor->shape;
    CAIRN_TRY_ASSIGN(item.box, Box::whole(tensor->shape));
  } else {
    item.dtype = DType::kFloat32;
    item.requires_grad = false;
    item.global_shape = Extents();
    item.box = Box();
  }
  return {};
}

Result<FileImage::Item> FileImage::place(const ItemSource& source, std::uint64_t cursor) {
  Item item;
  if (source.tensor == nullptr) {
    CAIRN_TRY_ASSIGN(item.extent, place_bytes(source.bytes.size(), cursor));
    item.contiguous = reinterpret_cast<const std::byte*>(source.bytes.data());
    return item;
  }
  const TensorView& local = source.tensor->local;
  CAIRN_TRY_ASSIGN(const PlacedTensor placed, place_tensor(item_of(*source.tensor), cursor));
  item.extent = placed.extent;
  item.layout = placed.layout;
  item.tensor = source.tensor;
  Region region(local.sizes, row_major_strides(local.sizes), local.strides);
  if (region.is_linear() || item.layout.payload_bytes == 0) {
    item.contiguous = static_cast<const std::byte*>(local.data);
  } else {
    item.region = std::move(region);
  }
  return item;
}

Result<FileImage> FileImage::make(const ImageIdentity& identity, std::span<const ItemSource> sources) {
  FileImage image;
  image.items_.reserve(sources.size());
  manifest::TrailerIndex index{identity.save_id, identity.rank, identity.file_number, identity.file_count, {}};
  index.items.reserve(sources.size());
  std::uint64_t cursor = 0;
  for (const ItemSource& source : sources) {
    Result<Item> placed = place(source, cursor);
    if (!placed) return std::move(placed).error().key(source.entry->fqn);
    const Item& item = image.items_.emplace_back(std::move(*placed));
    cursor = item.extent.item_offset + item.extent.item_length;
    manifest::TrailerItem& described = index.items.emplace_back();
    CAIRN_TRY(describe(source, described));
    described.extent = item.extent;
  }
  CAIRN_TRY_ASSIGN(image.trailer_, manifest::TrailerLayout::make(index, align_up(cursor, kPayloadAlignment)));
  return image;
}

std::size_t FileImage::first_item_beyond(std::uint64_t offset) const {
  const auto found = std::partition_point(items_.begin(), items_.end(), [offset](const Item& item) {
    return item.extent.payload_offset + item.extent.payload_length <= offset;
  });
  return static_cast<std::size_t>(found - items_.begin());
}

std::optional<std::span<const std::byte>> FileImage::view_payload(std::size_t index, std::uint64_t begin,
                                                                  std::uint64_t length) const {
  const Item& item = items_[index];
  if (item.region) return std::nullopt;
  return std::span(item.contiguous + begin, length);
}

void FileImage::read_payload(std::size_t index, std::uint64_t begin, std::span<std::byte> out) const {
  const Item& item = items_[index];
  if (!item.region) {
    std::memcpy(out.data(), item.contiguous + begin, out.size());
    return;
  }
  const std::size_t item_size = item_bytes(item.tensor->local.dtype);
  gather(*item.region, item_size, static_cast<const std::byte*>(item.tensor->local.data),
         static_cast<std::int64_t>(begin / item_size), out);
}

void FileImage::render_frame(std::size_t frame, std::uint32_t previous_payload_crc, std::span<std::byte> out) const {
  assert(out.size() == frame_end(frame) - frame_begin(frame));
  std::size_t tail_bytes = 0;
  std::size_t head_bytes = 0;
  if (frame > 0 && items_[frame - 1].tensor != nullptr) {
    const Item& item = items_[frame - 1];
    tail_bytes = item.layout.tail_bytes;
    torch_file::render_tail(item_of(*item.tensor), item.layout, previous_payload_crc, out.first(tail_bytes));
  }
  if (frame < items_.size() && items_[frame].tensor != nullptr) {
    const Item& item = items_[frame];
    head_bytes = item.layout.head_bytes;
    torch_file::render_head(item_of(*item.tensor), item.layout, out.last(head_bytes));
  }
  const std::span<std::byte> gap = out.subspan(tail_bytes, out.size() - tail_bytes - head_bytes);
  std::fill(gap.begin(), gap.end(), std::byte{0});
}

}  // namespace cairn::transfer

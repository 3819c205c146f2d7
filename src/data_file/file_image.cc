#include "data_file/file_image.h"

#include <algorithm>
#include <cassert>

#include "core/checked.h"

namespace cairn::data_file {
namespace {

torch_file::TensorItem item_of(const TensorView& tensor) { return {tensor.dtype, tensor.sizes}; }

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
    if (tensor->chunk) {
      item.box = *tensor->chunk;
    } else {
      CAIRN_TRY_ASSIGN(item.box, Box::whole(tensor->shape));
    }
  } else {
    item.dtype = DType::kFloat32;
    item.requires_grad = false;
    item.global_shape = Extents();
    item.box = Box();
  }
  return {};
}

std::uint64_t FileImage::end() const {
  return items_.empty() ? 0 : items_.back().range.item_offset + items_.back().range.item_length;
}

Result<void> FileImage::add_bytes_item(std::string_view bytes) {
  Item item;
  CAIRN_TRY_ASSIGN(item.range, place_bytes(bytes.size(), end()));
  add_bytes(item.range.payload_offset, bytes);
  items_.push_back(item);
  return {};
}

Result<void> FileImage::add_tensor_item(const TensorView& tensor) {
  CAIRN_TRY_ASSIGN(const PlacedTensor placed, place_tensor(item_of(tensor), end()));
  add_tensor(placed.range.payload_offset, placed.layout.payload_bytes, tensor);
  items_.push_back({placed.range, placed.layout, &tensor});
  return {};
}

Result<void> FileImage::add(const ItemSource& source, manifest::TrailerIndex& index) {
  Result<void> added = source.tensor != nullptr ? add_tensor_item(source.tensor->local) : add_bytes_item(source.bytes);
  if (!added) return std::move(added).error().key(source.entry->fqn);
  manifest::TrailerItem& described = index.items.emplace_back();
  CAIRN_TRY(describe(source, described));
  described.range = items_.back().range;
  return {};
}

Result<LaidOutFile> FileImage::lay_out(const ImageIdentity& identity, std::span<const ItemSource> sources) {
  FileImage image;
  manifest::TrailerIndex index{identity.save_id, identity.rank, identity.file_number, identity.file_count, {}};
  for (const ItemSource& source : sources) CAIRN_TRY(image.add(source, index));
  CAIRN_TRY(image.finish(index));
  const std::uint64_t file_bytes = image.file_bytes();
  return LaidOutFile{std::move(index), file_bytes};
}

Result<FileImage> FileImage::make(const ImageIdentity& identity, std::span<const ItemSource> sources) {
  FileImage image;
  image.items_.reserve(sources.size());
  image.reserve(sources.size());
  manifest::TrailerIndex index{identity.save_id, identity.rank, identity.file_number, identity.file_count, {}};
  index.items.reserve(sources.size());
  for (const ItemSource& source : sources) CAIRN_TRY(image.add(source, index));
  CAIRN_TRY(image.finish(index));
  return image;
}

Result<void> FileImage::finish(const manifest::TrailerIndex& index) {
  CAIRN_TRY_ASSIGN(trailer_, manifest::TrailerLayout::make(index, align_up(end(), kPayloadAlignment)));
  return {};
}

Result<FileImage> FileImage::of_staged(const manifest::TrailerIndex& index, std::span<const std::byte> staged) {
  FileImage image;
  image.items_.reserve(index.items.size());
  image.reserve(index.items.size());
  image.staged_.reserve(index.items.size());  // items hold pointers into the vector, which must not reallocate
  for (const manifest::TrailerItem& described : index.items) {
    const manifest::ItemRange& range = described.range;
    const auto refuse = [&](const char* what) {
      return Error(ErrorCode::kInvalidArgument, what).key(described.fqn).offset(range.payload_offset);
    };
    if (range.payload_offset > staged.size() || range.payload_length > staged.size() - range.payload_offset) {
      return refuse("the item ends beyond the end of the staged bytes");
    }
    const std::byte* const payload = staged.data() + range.payload_offset;
    const bool is_tensor = described.kind == manifest::TrailerItem::Kind::kTensor;
    if (is_tensor) {
      image.staged_.push_back(
          TensorView::contiguous(static_cast<const void*>(payload), described.dtype, described.box.sizes()));
    }
    const std::string_view bytes(reinterpret_cast<const char*>(payload), range.payload_length);
    Result<void> added = is_tensor ? image.add_tensor_item(image.staged_.back()) : image.add_bytes_item(bytes);
    if (!added) return std::move(added).error().key(described.fqn);
    if (!(image.items_.back().range == range)) return refuse("the offsets of the item differ from the layout");
  }
  CAIRN_TRY(image.finish(index));
  if (image.file_bytes() > staged.size()) {
    return Error(ErrorCode::kInvalidArgument, "the file is larger than the staged bytes");
  }
  return image;
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

}  // namespace cairn::data_file

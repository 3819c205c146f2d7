#include "data_file/item_placement.h"

#include "core/checked.h"

namespace cairn::data_file {
namespace {

// Far larger than any device, and far enough below 2^64 to add a few offsets without overflow.
constexpr std::uint64_t kFileBytesMax = std::uint64_t{1} << 62;

Error too_large() {
  return Error(ErrorCode::kInvalidArgument, "a data file of more than 2^62 bytes: split the tensors over more files");
}

// The item ends at `offset` + `length`. The sum can't overflow: an offset is at most kFileBytesMax and a page, and the
// length of an archive below 2^63.
Result<void> check_end(std::uint64_t offset, std::uint64_t length) {
  if (length <= kFileBytesMax && offset + length <= kFileBytesMax) return {};
  return too_large();
}

}  // namespace

Result<PlacedTensor> place_tensor(const torch_file::TensorItem& item, std::uint64_t previous_end) {
  if (previous_end > kFileBytesMax) return too_large();
  PlacedTensor placed;
  CAIRN_TRY_ASSIGN(placed.layout, torch_file::layout_tensor_item(item));
  const torch_file::TensorItemLayout& layout = placed.layout;
  const bool large = layout.payload_bytes >= kPageAlignedPayloadBytes;
  const std::uint64_t payload =
      align_up(previous_end + layout.head_bytes, large ? kPayloadPageBytes : kPayloadAlignment);
  placed.range = {payload - layout.head_bytes, layout.total(), payload, layout.payload_bytes};
  CAIRN_TRY(check_end(placed.range.item_offset, placed.range.item_length));
  return placed;
}

Result<manifest::ItemRange> place_bytes(std::uint64_t length, std::uint64_t previous_end) {
  if (previous_end > kFileBytesMax) return too_large();
  const std::uint64_t offset = align_up(previous_end, kPayloadAlignment);
  CAIRN_TRY(check_end(offset, length));
  return manifest::ItemRange{offset, length, offset, length};
}

}  // namespace cairn::data_file

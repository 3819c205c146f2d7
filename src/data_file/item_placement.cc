#include "data_file/item_placement.h"

#include <algorithm>

#include "core/checked.h"

namespace cairn::data_file {
namespace {

// Far larger than any device, and far enough below 2^64 to add a few offsets without overflow.
constexpr std::uint64_t kFileBytesMax = std::uint64_t{1} << 62;

Result<void> check_room(std::uint64_t length, std::uint64_t previous_end) {
  if (length <= kFileBytesMax - std::min(kFileBytesMax, previous_end)) return {};
  return Error(ErrorCode::kInvalidArgument, "a data file of more than 2^62 bytes");
}

}  // namespace

Result<PlacedTensor> place_tensor(const torch_file::TensorItem& item, std::uint64_t previous_end) {
  PlacedTensor placed;
  CAIRN_TRY_ASSIGN(placed.layout, torch_file::layout_tensor_item(item));
  const torch_file::TensorItemLayout& layout = placed.layout;
  CAIRN_TRY(check_room(layout.payload_bytes, previous_end));
  const bool large = layout.payload_bytes >= kPageAlignedPayloadBytes;
  const std::uint64_t payload =
      align_up(previous_end + layout.head_bytes, large ? kPayloadPageBytes : kPayloadAlignment);
  placed.extent = {payload - layout.head_bytes, layout.total(), payload, layout.payload_bytes};
  return placed;
}

Result<manifest::ItemExtent> place_bytes(std::uint64_t length, std::uint64_t previous_end) {
  CAIRN_TRY(check_room(length, previous_end));
  const std::uint64_t offset = align_up(previous_end, kPayloadAlignment);
  return manifest::ItemExtent{offset, length, offset, length};
}

}  // namespace cairn::data_file

// TensorItem: a tensor as a torch.save archive in which only the payload and its checksum are unknown in advance.
//
// Pure and deterministic: head and tail depend only on dtype, sizes and the payload's CRC, and are rendered into the
// caller's memory without allocation. An item is head, payload, tail, in order and without gaps. torch 2.2 and later
// read an item by torch.load, with or without weights_only, with or without mmap.
#pragma once

#include <cairn/result.h>
#include <cairn/tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace cairn::torch_file {

// A row-major tensor that owns its whole storage.
struct TensorItem {
  DType dtype = DType::kFloat32;
  Extents sizes;
};

struct TensorItemLayout {
  std::uint32_t head_bytes = 0;
  std::uint64_t payload_bytes = 0;
  std::uint32_t tail_bytes = 0;

  std::uint64_t total() const { return head_bytes + payload_bytes + tail_bytes; }
};

// Fails with kUnsupported for quantised dtypes, and with kInvalidArgument if the sizes are not a shape or if the item
// would exceed 2^63 - 1 bytes.
Result<TensorItemLayout> layout_tensor_item(const TensorItem& item);

// `layout` is the layout of `item`. `out.size()` is head_bytes for the head, tail_bytes for the tail.
void render_head(const TensorItem& item, const TensorItemLayout& layout, std::span<std::byte> out);
void render_tail(const TensorItem& item, const TensorItemLayout& layout, std::uint32_t payload_crc,
                 std::span<std::byte> out);

}  // namespace cairn::torch_file

// TensorItem: one tensor as a torch.save archive whose only unknown parts are the payload and its checksum.
//
// Pure and deterministic: head and tail depend on nothing but dtype, sizes and the payload's CRC, and are rendered into
// the caller's memory without allocation. An item is head, payload, tail, in this order and without gaps. torch 2.2 and
// later read it with torch.load, weights_only or not, mmap or not.
#pragma once

#include <cairn/box.h>
#include <cairn/dtype.h>
#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace cairn::torch_file {

// A row-major tensor that owns the whole of its storage.
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

// Fails with kUnsupported for quantised dtypes, and with kInvalidArgument if the sizes are no shape or the item would
// not fit into 2^63 - 1 bytes.
Result<TensorItemLayout> layout_tensor_item(const TensorItem& item);

// `layout` is that of `item`, `out.size()` its head_bytes or tail_bytes.
void render_head(const TensorItem& item, const TensorItemLayout& layout, std::span<std::byte> out);
void render_tail(const TensorItem& item, const TensorItemLayout& layout, std::uint32_t payload_crc,
                 std::span<std::byte> out);

}  // namespace cairn::torch_file

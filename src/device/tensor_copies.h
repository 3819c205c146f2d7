// TensorCopies: the driver's copies between a tensor on a device and host memory that holds the tensor's elements in
// row-major order.
//
// Pure: nothing is queued here.
#pragma once

#include <cairn/tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/driver.h"

namespace cairn::device {

// Appends to `copies` the copies between `host` and the bytes of the tensor from `begin` on, in row-major order.
// `begin` and the size of `host` are multiples of the element size, and within the tensor.
//
// `pieces` is the beginning of a registration in pieces (registration.h) that holds `host`: no copy crosses the border
// of two pieces. Null: `host` lies in a single registration.
//
// A contiguous tensor takes one copy for each piece. Rows of equal length and distance take one copy with many rows.
void append_copies(const TensorView& tensor, std::uint64_t begin, std::span<std::byte> host, const std::byte* pieces,
                   std::vector<Copy>& copies);

}  // namespace cairn::device

// Strided copies and the byte changes that a stored tensor may ask for.
//
// Pure. The caller has checked that the window lies in the source and that the target is as large as the elements.
#pragma once

#include <cairn/dtype.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace cairn::torch_file {

// Elements at the multiples of the strides; neither is negative.
struct StridedWindow {
  std::span<const std::int64_t> sizes;
  std::span<const std::int64_t> strides;  // in elements
  std::uint64_t element_bytes = 1;
};

// Copies the window, whose first element is the first of `from`, to `to` in row-major order.
void copy_strided(const StridedWindow& window, std::span<const std::byte> from, std::span<std::byte> to);

// Turns the byte order of each number round.
void swap_bytes(DType dtype, std::span<std::byte> elements);

// Turns the sign of each number round; of complex ones both parts.
void negate(DType dtype, std::span<std::byte> elements);
// Of complex numbers the imaginary part alone; leaves others as they are.
void negate_imaginary(DType dtype, std::span<std::byte> elements);

}  // namespace cairn::torch_file

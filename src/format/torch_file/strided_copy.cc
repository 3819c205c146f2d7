#include "format/torch_file/strided_copy.h"

#include <cairn/box.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>

namespace cairn::torch_file {
namespace {

bool is_complex(DType dtype) {
  return dtype == DType::kComplex32 || dtype == DType::kComplex64 || dtype == DType::kComplex128;
}

// A complex number is two numbers in memory.
std::size_t number_bytes(DType dtype) { return is_complex(dtype) ? item_bytes(dtype) / 2 : item_bytes(dtype); }

// A little-endian number's sign is the top bit of its last byte.
void flip_sign(std::byte* number, std::size_t bytes) { number[bytes - 1] ^= std::byte{0x80}; }

// Two's complement: flip all bits and add one.
void negate_integer(std::byte* number, std::size_t bytes) {
  unsigned carry = 1;
  for (std::size_t i = 0; i < bytes; ++i) {
    const unsigned flipped = std::to_integer<unsigned>(~number[i]) + carry;
    number[i] = static_cast<std::byte>(flipped);
    carry = flipped >> 8;
  }
}

}  // namespace

void copy_strided(const StridedWindow& window, std::span<const std::byte> from, std::span<std::byte> to) {
  const std::size_t dimensions = window.sizes.size();
  assert(dimensions <= kDimensionsMax);
  // The trailing dimensions that lie without gaps go in one piece.
  std::uint64_t run = 1;
  std::size_t outer = dimensions;
  while (outer > 0 && (window.sizes[outer - 1] == 1 || static_cast<std::uint64_t>(window.strides[outer - 1]) == run)) {
    run *= static_cast<std::uint64_t>(window.sizes[--outer]);
  }
  const std::uint64_t run_bytes = run * window.element_bytes;
  std::array<std::int64_t, kDimensionsMax> at{};
  std::uint64_t element = 0;
  for (std::size_t done = 0; done < to.size(); done += run_bytes) {
    std::memcpy(to.data() + done, from.data() + element * window.element_bytes, run_bytes);
    for (std::size_t i = outer; i-- > 0;) {
      const auto stride = static_cast<std::uint64_t>(window.strides[i]);
      element += stride;
      if (++at[i] < window.sizes[i]) break;
      element -= stride * static_cast<std::uint64_t>(window.sizes[i]);
      at[i] = 0;
    }
  }
}

void swap_bytes(DType dtype, std::span<std::byte> elements) {
  const std::size_t bytes = number_bytes(dtype);
  if (bytes == 1) return;
  for (std::size_t i = 0; i + bytes <= elements.size(); i += bytes) {
    std::reverse(elements.begin() + static_cast<std::ptrdiff_t>(i),
                 elements.begin() + static_cast<std::ptrdiff_t>(i + bytes));
  }
}

void negate(DType dtype, std::span<std::byte> elements) {
  const std::size_t bytes = number_bytes(dtype);
  const bool has_sign_bit = is_complex(dtype) || is_floating_point(dtype);
  for (std::size_t i = 0; i + bytes <= elements.size(); i += bytes) {
    has_sign_bit ? flip_sign(elements.data() + i, bytes) : negate_integer(elements.data() + i, bytes);
  }
}

void negate_imaginary(DType dtype, std::span<std::byte> elements) {
  if (!is_complex(dtype)) return;
  const std::size_t bytes = number_bytes(dtype);
  for (std::size_t i = bytes; i + bytes <= elements.size(); i += 2 * bytes) flip_sign(elements.data() + i, bytes);
}

}  // namespace cairn::torch_file

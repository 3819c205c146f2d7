#include "core/stored_elements.h"

#include <algorithm>

namespace cairn {
namespace {

// The bytes of a number; a complex number consists of two numbers in memory.
std::size_t number_bytes(DType dtype) { return is_complex(dtype) ? item_bytes(dtype) / 2 : item_bytes(dtype); }

// The sign of a little-endian number is the top bit of its last byte.
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

}  // namespace cairn

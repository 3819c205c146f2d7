// Checked arithmetic on sizes and offsets: numbers from a file are added and multiplied only by these functions.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>

namespace cairn {

// nullopt if the result does not fit.
template <std::integral T>
constexpr std::optional<T> checked_add(T a, T b) {
  T sum;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

template <std::integral T>
constexpr std::optional<T> checked_multiply(T a, T b) {
  T product;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

// Whether [offset, offset + length) lies in [0, size).
constexpr bool range_within(std::uint64_t offset, std::uint64_t length, std::uint64_t size) {
  return length <= size && offset <= size - length;
}

// The smallest multiple of `alignment` (a power of two) that is >= value. The caller ensures that the result fits.
constexpr std::uint64_t align_up(std::uint64_t value, std::uint64_t alignment) {
  return (value + alignment - 1) & ~(alignment - 1);
}
constexpr std::uint64_t align_down(std::uint64_t value, std::uint64_t alignment) { return value & ~(alignment - 1); }

}  // namespace cairn

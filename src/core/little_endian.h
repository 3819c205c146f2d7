// Little-endian integers in byte buffers, for all of Cairn's formats. The caller must have checked the bounds.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstring>

namespace cairn {

static_assert(std::endian::native == std::endian::little,
              "big-endian machines need byte swaps here and in the formats");

template <std::unsigned_integral T>
T load_little_endian(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Returns the address after the stored value.
template <std::unsigned_integral T>
std::byte* store_little_endian(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
  return to + sizeof value;
}

}  // namespace cairn

// LongInteger: the bytes of pickle's LONG opcodes: two's complement, little endian, of any length.
//
// Pure.
#pragma once

#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace cairn::pickle {

// The number without bytes that only repeat the sign. Linear in the number's length: called once for each opcode, not
// for each use of the number.
inline std::span<const std::byte> shortest(std::span<const std::byte> number) {
  while (number.size() > 1) {
    const auto last = std::to_integer<unsigned>(number.back());
    const bool negative = (number[number.size() - 2] & std::byte{0x80}) != std::byte{0};
    if (last != (negative ? 0xFFu : 0u)) break;
    number = number.first(number.size() - 1);
  }
  return number;
}

// `number` has at most eight bytes; an empty number is 0.
inline std::int64_t small_integer(std::span<const std::byte> number) {
  assert(number.size() <= sizeof(std::int64_t));
  const bool negative = !number.empty() && (number.back() & std::byte{0x80}) != std::byte{0};
  std::uint64_t value = negative ? ~std::uint64_t{0} : 0;
  if (!number.empty()) std::memcpy(&value, number.data(), number.size());
  return std::bit_cast<std::int64_t>(value);
}

}  // namespace cairn::pickle

// DecimalInteger: the integers of the text opcodes INT and LONG of protocol 0 and 1, as bytes of pickle's LONG1.
//
// Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

namespace cairn::pickle {

// As Python's own limit for texts: the time grows by the square of the length.
inline constexpr std::size_t kDecimalDigitsMax = 4300;

// Two's complement, little endian, as short as possible (long_integer.h). `text` is an optional minus sign and digits,
// and for LONG the letter L. Nullopt for any other text, and for more than kDecimalDigitsMax digits.
std::optional<std::vector<std::byte>> decimal_integer(std::string_view text);

}  // namespace cairn::pickle

// Parses a whole number.
#pragma once

#include <charconv>
#include <concepts>
#include <optional>
#include <string_view>

namespace cairn {

// nullopt unless `digits` is a number within the range of T and contains nothing more: no space, no plus sign.
template <std::integral T>
std::optional<T> whole_number(std::string_view digits, int radix = 10) {
  T number = 0;
  const char* const end = digits.data() + digits.size();
  const auto parsed = std::from_chars(digits.data(), end, number, radix);
  return parsed.ec == std::errc() && parsed.ptr == end ? std::optional(number) : std::nullopt;
}

}  // namespace cairn

// Decodes the first character of text that may not be valid UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace cairn {

struct Utf8Character {
  std::uint32_t code_point = 0;
  std::size_t bytes = 1;
};

// Returns the first character of `text`, which is not empty; nullopt if the first byte begins no character. Half of a
// surrogate pair counts as a character, because Python writes such halves (surrogatepass).
std::optional<Utf8Character> first_character(std::string_view text);

}  // namespace cairn

// One character of text that claims to be UTF-8 and may not be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace cairn::cli {

struct Utf8Character {
  std::uint32_t code_point = 0;
  std::size_t bytes = 1;
};

// The character that `text`, which is not empty, begins with; nullopt if its first byte begins none. Python writes half
// a surrogate pair like any other character (surrogatepass), so such halves are characters here too.
std::optional<Utf8Character> first_character(std::string_view text);

}  // namespace cairn::cli

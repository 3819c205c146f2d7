// UTF-8 as JSON has it: code points without surrogates, each in its shortest form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cairn::json {

inline constexpr std::uint32_t kHighSurrogateMin = 0xD800;
inline constexpr std::uint32_t kLowSurrogateMin = 0xDC00;
inline constexpr std::uint32_t kSurrogateMax = 0xDFFF;
inline constexpr std::uint32_t kSupplementMin = 0x10000;  // code points from here on are pairs of surrogates in UTF-16
inline constexpr std::uint32_t kCodePointMax = 0x10FFFF;

void append_utf8(std::string& out, std::uint32_t code_point);

// The length in bytes of the character at the begin of `text`, whose first byte is not ASCII. 0 if the bytes are not
// UTF-8: cut off, longer than necessary, a surrogate, or above the last code point.
std::size_t utf8_length(std::string_view text);

}  // namespace cairn::json

// Text for a terminal: names as they are where that is harmless, numbers in units that people read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cairn::cli {

// `text` with everything escaped that is not visible (visible.h), bytes that are not UTF-8, and the backslash that
// marks the escapes: "\n", "\x1b", "\u202e", "\U000e0041".
std::string printable(std::string_view text);

// "1 key", "2 keys".
std::string counted(std::uint64_t count, std::string_view noun);

// "640 B", "1.5 KiB", "12.0 GiB".
std::string byte_text(std::uint64_t bytes);

}  // namespace cairn::cli

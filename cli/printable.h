// Text for a terminal: harmless characters of names unchanged, numbers in readable units.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cairn::cli {

// Returns `text` with escapes for invisible characters (visible.h), for bytes that are not UTF-8, and for the
// backslash, which marks the escapes: "\n", "\x1b", "\u202e", "\U000e0041".
std::string printable(std::string_view text);

// "1 key", "2 keys".
std::string counted(std::uint64_t count, std::string_view noun);

// "640 B", "1.5 KiB", "12.0 GiB".
std::string byte_text(std::uint64_t bytes);

}  // namespace cairn::cli

// The visible characters of a name.
#pragma once

#include <cstdint>

namespace cairn::cli {

// False for control characters and line breaks, for characters that reverse the direction of writing, for spaces except
// ' ', for characters without width or glyph (Unicode's Default_Ignorable_Code_Point), and for halves of surrogate
// pairs. Two names that differ only in invisible characters would look equal.
bool is_visible(std::uint32_t code_point);

}  // namespace cairn::cli

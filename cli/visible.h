// Which characters of a name can be seen as what they are.
#pragma once

#include <cstdint>

namespace cairn::cli {

// False for control characters and line breaks, for what reverses the direction of writing, for spaces other than ' ',
// for what has no width or no glyph (Unicode's Default_Ignorable_Code_Point), and for halves of surrogate pairs. Two
// names that differ in such characters alone would look the same.
bool is_visible(std::uint32_t code_point);

}  // namespace cairn::cli

#include "visible.h"

#include <algorithm>
#include <iterator>

namespace cairn::cli {
namespace {

struct Range {
  std::uint32_t first;
  std::uint32_t last;
};

// Unicode 16: categories Cc, Zl, Zp, Zs but U+0020, and Cs; the properties Default_Ignorable_Code_Point and
// Bidi_Control; blank letters.
constexpr Range kInvisible[] = {
    {0x00, 0x1F},     {0x7F, 0xA0},     {0xAD, 0xAD},       {0x34F, 0x34F},     {0x61C, 0x61C},     {0x115F, 0x1160},
    {0x1680, 0x1680}, {0x17B4, 0x17B5}, {0x180B, 0x180F},   {0x2000, 0x200F},   {0x2028, 0x202F},   {0x205F, 0x206F},
    {0x2800, 0x2800}, {0x3000, 0x3000}, {0x3164, 0x3164},   {0xD800, 0xDFFF},   {0xFE00, 0xFE0F},   {0xFEFF, 0xFEFF},
    {0xFFA0, 0xFFA0}, {0xFFF0, 0xFFFB}, {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A}, {0xE0000, 0xE0FFF},
};

}  // namespace

bool is_visible(std::uint32_t code_point) {
  const Range* const range = std::lower_bound(std::begin(kInvisible), std::end(kInvisible), code_point,
                                              [](const Range& it, std::uint32_t point) { return it.last < point; });
  return range == std::end(kInvisible) || code_point < range->first;
}

}  // namespace cairn::cli

// The version of the library. The on-disk format has versions of its own (docs/format.md).
#pragma once

#include <string_view>

namespace cairn {
inline constexpr std::string_view kVersion = "0.1.0";
}

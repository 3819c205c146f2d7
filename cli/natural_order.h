// natural_order: names sorted as people count: step-9 before step-10.
#pragma once

#include <string_view>

namespace cairn::cli {

// Whether `a` comes before `b`: runs of decimal digits compare as numbers of any length, everything else byte by byte.
// Names that are equal so far (step-7, step-007) are ordered byte by byte: the order is strict and total.
bool natural_less(std::string_view a, std::string_view b);

}  // namespace cairn::cli

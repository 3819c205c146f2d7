// natural_order: names sorted with their numbers as numbers: step-9 before step-10.
#pragma once

#include <string_view>

namespace cairn::cli {

// Whether `a` comes before `b`: runs of decimal digits compare as numbers of any length, all remaining characters byte
// by byte. Names that are equal by this rule (step-7, step-007) are ordered byte by byte: the order is strict and
// total.
bool natural_less(std::string_view a, std::string_view b);

}  // namespace cairn::cli

// Value comparison: whether two values are equal, and where they differ.
//
// Pure.
#pragma once

#include <cairn/state_dict.h>

#include <optional>
#include <string>

namespace cairn {

struct ValueDifference {
  std::string place;  // of the differing part, as in Python: "['betas'][1]"; empty: the whole values
  std::string a;      // the differing parts, as Python prints them, shortened; empty: a container lacks the part
  std::string b;
};

// The first difference; nullopt if the values are equal. Types count: True, 1 and 1.0 differ, and a dict differs from
// an OrderedDict. Numbers are equal if their bits are, and any NaN equals any NaN. With a tolerance, floats, complex
// numbers and the elements of arrays are compared as those of tensors (element_comparison.h). The order of a dict's
// keys and of a set's items does not count; the order of an OrderedDict's keys does.
std::optional<ValueDifference> first_difference(const Value& a, const Value& b, std::optional<double> tolerance = {});

}  // namespace cairn

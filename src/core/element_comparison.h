// Element comparison: how the elements of two tensors differ.
//
// Pure functions.
#pragma once

#include <cairn/tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace cairn {

// Elements in a row.
struct Elements {
  DType dtype = DType::kFloat32;
  std::span<const std::byte> bytes;
};

// Whether elements of the two dtypes are compared as numbers: both are real floating-point dtypes, or both are complex,
// with one number per element. All other elements are compared by their bits.
bool compares_as_numbers(DType a, DType b);

// Whether two numbers count as equal: both are NaN, or they are equal (0.0 equals -0.0), or the absolute difference or
// the relative difference is at most `tolerance`. The relative difference is |a - b| / max(|a|, |b|). An infinity
// agrees only with itself.
bool agree_within(double a, double b, double tolerance);

// Positions are counted from the first element of the tensor.
struct ElementTally {
  std::uint64_t elements = 0;
  // Elements with different bits; of different dtypes, numbers that differ (two NaN are equal, and so are 0.0 and
  // -0.0).
  std::uint64_t unequal = 0;
  // With a tolerance, numbers that do not agree_within() it; otherwise the unequal elements.
  std::uint64_t differing = 0;
  std::uint64_t nan_on_one_side = 0;
  // Of numbers: over all elements without NaN. Infinite if one side, or the difference, is infinite.
  double largest_absolute = 0;
  double largest_relative = 0;
  std::optional<std::int64_t> first_differing = {};
  std::optional<std::int64_t> largest_at = {};  // the first position with the largest absolute difference above 0

  void add(const ElementTally& other);
};

// Compares equally many elements; if the dtypes differ, they are numbers (compares_as_numbers). `begin` is the position
// of the first element. The tolerance applies to numbers only.
ElementTally compare_elements(const Elements& a, const Elements& b, std::int64_t begin,
                              std::optional<double> tolerance);

}  // namespace cairn

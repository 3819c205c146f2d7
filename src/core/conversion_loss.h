// ConversionLoss: the elements whose values did not survive a conversion between floating-point dtypes.
//
// Pure.
#pragma once

#include <cairn/tensor.h>

#include <cstdint>

#include "core/conversion.h"

namespace cairn {

struct ConversionLoss {
  // Finite elements that became infinite or NaN. In a dtype of 8 bits without infinities also infinities, and, where
  // numbers beyond the range become the largest number, these numbers.
  std::uint64_t overflows = 0;
  std::uint64_t underflows = 0;  // elements other than 0 that became 0
  // Whole numbers that became other whole numbers, as long as every element was a whole number: counts and steps. A
  // tensor with a fraction holds no counts, and is rounded everywhere.
  std::uint64_t rounded = 0;
  bool has_fraction = false;

  void add(const ConversionLoss& other) {
    overflows += other.overflows;
    underflows += other.underflows;
    rounded += other.rounded;
    has_fraction |= other.has_fraction;
  }
  bool is_any() const { return overflows > 0 || underflows > 0 || (rounded > 0 && !has_fraction); }
};

// Adds the losses of `count` elements after convert(from, to, side, count). Both dtypes are real and floating-point.
void count_losses(DType from, DType to, const ConversionSide& side, std::int64_t count, ConversionLoss& loss);

}  // namespace cairn

// Conversion: converts elements between dtypes, with the results of torch's copy_, including NaN payloads.
//
// A complex number loses its imaginary part when converted to a real dtype. As bool, a complex number is true unless
// both parts are 0. In torch some results depend on the machine; here the results are fixed: a real number outside an
// integer's range becomes the nearest integer, NaN becomes 0, and NaN as bfloat16 is 0x7FC0.
//
// Pure functions.
#pragma once

#include <cairn/tensor.h>

#include <cstddef>
#include <cstdint>

#include "core/region.h"

namespace cairn {

// Whether convert() supports the pair: all real and complex numbers, without the sub-byte, bits and quantised dtypes.
bool is_convertible(DType from, DType to);

// `count` elements, `from_step` and `to_step` elements apart.
struct ConversionSide {
  const std::byte* from;
  std::int64_t from_step;
  std::byte* to;
  std::int64_t to_step;
};
void convert(DType from, DType to, const ConversionSide& side, std::int64_t count);

// As scatter(), with a conversion of the dtype.
struct ConversionLoss;
struct DTypeChange {
  DType from;
  DType to;
  ConversionLoss* loss = nullptr;  // null: losses are not counted
};
void scatter_converted(const Region& region, const DTypeChange& change, std::span<const std::byte> file_bytes,
                       std::int64_t begin, std::byte* memory);

}  // namespace cairn

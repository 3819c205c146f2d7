// Conversion: elements of one dtype as those of another, with the results of torch's copy_, NaN payloads included.
//
// Complex numbers lose their imaginary part on the way to real ones; as bool they are true unless both parts are 0.
// Where torch leaves the outcome to the machine this is the same everywhere: real numbers outside an integer's range
// become the nearest integer, NaN becomes 0, and NaN as bfloat16 is 0x7FC0.
//
// Pure functions.
#pragma once

#include <cairn/dtype.h>

#include <cstddef>
#include <cstdint>

#include "core/region.h"

namespace cairn {

// Whether convert() knows the pair: numbers of every kind, real or complex; not the sub-byte, bits and quantised
// dtypes.
bool is_convertible(DType from, DType to);

// `count` elements, `from_step` and `to_step` elements apart.
struct ConversionSide {
  const std::byte* from;
  std::int64_t from_step;
  std::byte* to;
  std::int64_t to_step;
};
void convert(DType from, DType to, const ConversionSide& side, std::int64_t count);

// As scatter(), with a change of dtype on the way.
struct DTypeChange {
  DType from;
  DType to;
};
void scatter_converted(const Region& region, DTypeChange change, std::span<const std::byte> file_bytes,
                       std::int64_t begin, std::byte* memory);

}  // namespace cairn

// Flat range: a range of a tensor's elements, counted in row-major order, as boxes.
//
// Pure.
#pragma once

#include <cairn/tensor.h>

#include <cstdint>
#include <vector>

namespace cairn::plan {

// The elements [begin, end) of a tensor, counted in row-major order.
struct FlatRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t count() const { return end - begin; }
};

// The boxes that make up the range, in row-major order: the elements of each box are contiguous in a row-major tensor.
// At most two boxes per dimension. The caller ensures that the range lies within a tensor of this shape, which has an
// element_count().
std::vector<Box> boxes_of(const Extents& shape, FlatRange range);

}  // namespace cairn::plan

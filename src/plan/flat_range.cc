#include "plan/flat_range.h"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <utility>

namespace cairn::plan {
namespace {

// The longest box that begins at flat position `begin`, ends at most at `end`, and is contiguous in row-major order.
Box longest_box_at(const Extents& shape, const Extents& strides, std::int64_t begin, std::int64_t end) {
  Extents offsets(shape.size(), 0);
  Extents sizes(shape.size(), 1);
  std::int64_t rest = begin;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    offsets[i] = rest / strides[i];
    rest %= strides[i];
    const std::int64_t slices = std::min((end - begin) / strides[i], shape[i] - offsets[i]);
    if (rest != 0 || slices == 0) continue;
    sizes[i] = slices;
    for (std::size_t inner = i + 1; inner < shape.size(); ++inner) sizes[inner] = shape[inner];
    break;
  }
  Result<Box> box = Box::make(std::move(offsets), std::move(sizes));
  assert(box && "the box lies within the tensor");
  return *std::move(box);
}

}  // namespace

std::vector<Box> boxes_of(const Extents& shape, FlatRange range) {
  const Extents strides = row_major_strides(shape);
  std::vector<Box> boxes;
  while (range.begin < range.end) {
    boxes.push_back(longest_box_at(shape, strides, range.begin, range.end));
    range.begin += boxes.back().element_count();
  }
  return boxes;
}

}  // namespace cairn::plan

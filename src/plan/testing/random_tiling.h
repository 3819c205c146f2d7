// Random tilings of a tensor for tests; no two chunks of a tiling overlap.
#pragma once

#include <cairn/tensor.h>

#include <cstdint>
#include <random>
#include <vector>

namespace cairn::plan {

inline Box box(Extents offsets, Extents sizes) { return Box::make(std::move(offsets), std::move(sizes)).value(); }

// Cuts a box at random places, repeatedly.
inline void shatter(const Box& whole, int depth, std::mt19937& random, std::vector<Box>& out) {
  const std::size_t d = whole.dimensions() == 0 ? 0 : random() % whole.dimensions();
  if (depth == 0 || whole.dimensions() == 0 || whole.sizes()[d] < 2) {
    out.push_back(whole);
    return;
  }
  const std::int64_t cut = 1 + static_cast<std::int64_t>(random() % static_cast<unsigned>(whole.sizes()[d] - 1));
  Extents left = whole.sizes();
  left[d] = cut;
  Extents right = whole.sizes();
  right[d] -= cut;
  Extents moved = whole.offsets();
  moved[d] += cut;
  shatter(box(whole.offsets(), left), depth - 1, random, out);
  shatter(box(moved, right), depth - 1, random, out);
}

inline Extents random_shape(std::size_t dimensions, unsigned size_max, std::mt19937& random) {
  Extents shape(dimensions, 0);
  for (std::size_t d = 0; d < dimensions; ++d) shape[d] = 1 + static_cast<std::int64_t>(random() % size_max);
  return shape;
}

// Per box its offsets, then its sizes, as in CatalogTensor.
inline std::vector<std::int64_t> numbers_of(const std::vector<Box>& boxes) {
  std::vector<std::int64_t> numbers;
  for (const Box& one : boxes) {
    numbers.insert(numbers.end(), one.offsets().begin(), one.offsets().end());
    numbers.insert(numbers.end(), one.sizes().begin(), one.sizes().end());
  }
  return numbers;
}

}  // namespace cairn::plan

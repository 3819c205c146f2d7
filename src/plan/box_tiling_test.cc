#include "plan/box_tiling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace cairn::plan {
namespace {

using Boxes = std::vector<std::int64_t>;

Box block_of(const Extents& offsets, const Extents& sizes) { return Box::make(offsets, sizes).value(); }

// Cuts a block at random places into `count` boxes.
Boxes cut(const Box& block, std::size_t count, std::mt19937& random) {
  std::vector<Box> boxes{block};
  while (boxes.size() < count) {
    const std::size_t which = random() % boxes.size();
    const std::size_t d = random() % block.dimensions();
    const Box whole = boxes[which];
    if (whole.sizes()[d] < 2) continue;
    const auto first = 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(whole.sizes()[d] - 1));
    Extents offsets = whole.offsets();
    Extents sizes = whole.sizes();
    sizes[d] = first;
    boxes[which] = block_of(offsets, sizes);
    offsets[d] += first;
    sizes[d] = whole.sizes()[d] - first;
    boxes.push_back(block_of(offsets, sizes));
  }
  std::shuffle(boxes.begin(), boxes.end(), random);
  Boxes numbers;
  for (const Box& box : boxes) {
    numbers.insert(numbers.end(), box.offsets().begin(), box.offsets().end());
    numbers.insert(numbers.end(), box.sizes().begin(), box.sizes().end());
  }
  return numbers;
}

TEST(BoxTiling, HoldsForEveryWayToCutABlock) {
  std::mt19937 random(11);
  for (const std::size_t dimensions : {1u, 2u, 3u, 20u}) {
    const Box block = block_of(Extents(dimensions, 5), Extents(dimensions, 8));
    for (const std::size_t count : {1u, 2u, 7u}) EXPECT_TRUE(is_tiling(block, cut(block, count, random)));
  }
  const Box large = block_of({std::int64_t{1} << 62, 0}, {std::int64_t{1} << 61, 1});
  EXPECT_TRUE(is_tiling(large, cut(large, 500, random)));
}

TEST(BoxTiling, FailsForHolesAndOverlaps) {
  const Box block = block_of({0, 0}, {4, 4});
  EXPECT_TRUE(is_tiling(block, Boxes{0, 0, 4, 2, 0, 2, 4, 2}));
  EXPECT_FALSE(is_tiling(block, Boxes{0, 0, 4, 2, 0, 2, 4, 1}));              // a hole
  EXPECT_FALSE(is_tiling(block, Boxes{0, 0, 4, 3, 0, 2, 4, 2}));              // an overlap
  EXPECT_FALSE(is_tiling(block, Boxes{0, 0, 4, 2, 0, 1, 4, 2}));              // as many elements as the block
  EXPECT_FALSE(is_tiling(block, Boxes{0, 0, 4, 2, 0, 2, 4, 2, 1, 1, 1, 1}));  // a surplus box
  EXPECT_FALSE(is_tiling(block, Boxes{}));
  EXPECT_TRUE(is_tiling(block, Boxes{0, 0, 4, 4, 2, 2, 0, 1}));  // a box without elements covers none
}

TEST(BoxTiling, NoticesAnyBoxThatIsMoved) {
  std::mt19937 random(12);
  const Box block = block_of({0, 0, 0}, {16, 16, 16});
  const Boxes tiling = cut(block, 60, random);
  for (std::size_t i = 0; i < tiling.size(); ++i) {
    Boxes moved = tiling;
    moved[i] += moved[i] > 0 ? -1 : 1;
    EXPECT_FALSE(is_tiling(block, moved)) << "number " << i;
  }
}

}  // namespace
}  // namespace cairn::plan

#include "plan/box_overlap.h"

#include <gtest/gtest.h>
#include <sanitizers.h>

#include <algorithm>
#include <random>

#include "plan/testing/random_tiling.h"

namespace cairn::plan {
namespace {

constexpr int kRounds = kSanitized ? 600 : 3000;
constexpr std::size_t kMany = kSanitized ? 2000 : 20000;

std::optional<BoxPair> overlap_of(const std::vector<Box>& boxes) {
  const std::size_t dimensions = boxes.empty() ? 0 : boxes[0].dimensions();
  return find_overlap(dimensions, numbers_of(boxes), boxes.size());
}

bool overlaps_somewhere(const std::vector<Box>& boxes) {
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (intersection(boxes[i], boxes[j])) return true;
    }
  }
  return false;
}

void expect_the_truth(const std::vector<Box>& boxes, bool overlaps) {
  const auto found = overlap_of(boxes);
  ASSERT_EQ(found.has_value(), overlaps);
  if (!found) return;
  EXPECT_LT(found->first, found->second);
  EXPECT_TRUE(intersection(boxes[found->first], boxes[found->second]));
}

// Moves or stretches a box, or removes its elements.
Box disturbed(const Box& whole, std::mt19937& random) {
  Extents offsets = whole.offsets();
  Extents sizes = whole.sizes();
  const std::size_t d = random() % whole.dimensions();
  switch (random() % 4) {
    case 0: offsets[d] += 1; break;
    case 1: offsets[d] = std::max<std::int64_t>(offsets[d] - 1, 0); break;
    case 2: sizes[d] += 1; break;
    default: sizes[d] = 0;
  }
  return box(offsets, sizes);
}

TEST(BoxOverlap, FoundInRandomTilings) {
  std::mt19937 random(5);
  int overlapping = 0;
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE(testing::Message() << "round=" << round);
    std::vector<Box> boxes;
    const std::size_t dimensions = 1 + random() % 5;
    shatter(Box::whole(random_shape(dimensions, 12, random)).value(), 7, random, boxes);
    std::shuffle(boxes.begin(), boxes.end(), random);
    expect_the_truth(boxes, false);
    Box& victim = boxes[random() % boxes.size()];
    victim = disturbed(victim, random);
    const bool overlaps = overlaps_somewhere(boxes);
    overlapping += overlaps ? 1 : 0;
    expect_the_truth(boxes, overlaps);
  }
  EXPECT_GT(overlapping, kRounds / 6);
  EXPECT_LT(overlapping, kRounds * 5 / 6);
}

TEST(BoxOverlap, FoundAmongSparseBoxes) {
  std::mt19937 random(6);
  int overlapping = 0;
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE(testing::Message() << "round=" << round);
    const std::size_t dimensions = 1 + random() % 4;
    std::vector<Box> boxes;
    for (std::size_t count = 2 + random() % 40; boxes.size() < count;) {
      Extents offsets(dimensions, 0);
      Extents sizes(dimensions, 0);
      for (std::size_t d = 0; d < dimensions; ++d) {
        offsets[d] = random() % 40;
        sizes[d] = random() % (dimensions == 1 ? 4 : 9);
      }
      boxes.push_back(box(offsets, sizes));
    }
    const bool overlaps = overlaps_somewhere(boxes);
    overlapping += overlaps ? 1 : 0;
    expect_the_truth(boxes, overlaps);
  }
  EXPECT_GT(overlapping, kRounds / 6);
  EXPECT_LT(overlapping, kRounds * 5 / 6);
}

// Chunks of sizes 1, 2, 3, 1, 2, 3... in each dimension.
std::vector<Box> uneven_grid(const std::vector<std::size_t>& counts) {
  std::vector<Box> boxes{Box()};
  for (const std::size_t count : counts) {
    std::vector<Box> next;
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const std::int64_t size = 1 + static_cast<std::int64_t>(i % 3);
      for (const Box& one : boxes) {
        std::vector<std::int64_t> offsets(one.offsets().begin(), one.offsets().end());
        std::vector<std::int64_t> sizes(one.sizes().begin(), one.sizes().end());
        offsets.push_back(begin);
        sizes.push_back(size);
        next.push_back(box(Extents(offsets), Extents(sizes)));
      }
      begin += size;
    }
    boxes = std::move(next);
  }
  return boxes;
}

// With so many chunks, comparing all pairs would take far longer: a quadratic search would be noticed by its duration.
TEST(BoxOverlap, FoundAmongManyChunksOfAGrid) {
  std::mt19937 random(7);
  const std::size_t side = kSanitized ? 60 : 200;
  for (const std::vector<std::size_t>& counts : {std::vector<std::size_t>{2 * kMany},
                                                 {1, 2 * kMany},
                                                 {side, side},
                                                 {2, kMany},
                                                 {kMany, 2},
                                                 {side / 6 + 1, side / 6 + 1, side / 6 + 1},
                                                 {2, 1, 3, side * 2 / 5, 1, side * 2 / 5}}) {
    SCOPED_TRACE(testing::PrintToString(counts));
    std::vector<Box> boxes = uneven_grid(counts);
    std::shuffle(boxes.begin(), boxes.end(), random);
    expect_the_truth(boxes, false);
    boxes.push_back(boxes[boxes.size() / 2]);
    expect_the_truth(boxes, true);
  }
}

// Half of the tensor is cut into rows, half into columns; the lengths of the chunks grow along a diagonal.
TEST(BoxOverlap, FoundAmongManyUnalignedChunks) {
  constexpr std::int64_t kCount = kMany;
  std::vector<Box> boxes;
  for (std::int64_t i = 0; i < kCount; ++i) {
    boxes.push_back(box({i, 0}, {1, kCount}));
    boxes.push_back(box({i, kCount + i}, {kCount - i, 1}));
    boxes.push_back(box({kCount, i}, {kCount, 1}));
    if (i > 0) boxes.push_back(box({0, kCount + i}, {i, 1}));
  }
  expect_the_truth(boxes, false);
  boxes.push_back(box({kCount - 1, 2 * kCount - 2}, {2, 2}));
  expect_the_truth(boxes, true);
}

TEST(BoxOverlap, IgnoresEmptyBoxes) {
  EXPECT_FALSE(overlap_of({}));
  EXPECT_FALSE(overlap_of({box({0}, {4})}));
  EXPECT_FALSE(overlap_of({box({0}, {4}), box({2}, {0}), box({2}, {0})}));
  EXPECT_EQ(overlap_of({box({2}, {0}), box({0}, {4}), box({0}, {4})}), BoxPair(1, 2));
  EXPECT_EQ(overlap_of({Box(), Box()}), BoxPair(0, 1));
}

}  // namespace
}  // namespace cairn::plan

#include "plan/uncovered_boxes.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <random>
#include <set>
#include <vector>

namespace cairn::plan {
namespace {

using Numbers = std::vector<std::int64_t>;

TEST(UncoveredBoxes, NoneForACompleteTiling) {
  const Box block = Box::whole({4, 6}).value();
  EXPECT_TRUE(uncovered_boxes(block, Numbers{0, 0, 4, 2, 0, 2, 3, 4, 3, 2, 1, 4}, 100)->empty());
}

TEST(UncoveredBoxes, NameTheLostRows) {
  const Box block = Box::whole({4, 6}).value();
  const auto rest = uncovered_boxes(block, Numbers{0, 0, 1, 6, 3, 0, 1, 6}, 100);
  ASSERT_EQ(rest->size(), 1u);
  EXPECT_EQ(rest->front(), Box::make({1, 0}, {2, 6}).value());
}

TEST(UncoveredBoxes, TheScalarWithoutABox) {
  const auto rest = uncovered_boxes(Box(), {}, 100);
  ASSERT_EQ(rest->size(), 1u);
  EXPECT_EQ(rest->front(), Box());
  EXPECT_TRUE(uncovered_boxes(Box::whole({0, 3}).value(), {}, 100)->empty());
}

TEST(UncoveredBoxes, LimitedInTheirNumber) {
  Numbers holes;
  for (std::int64_t i = 0; i < 50; ++i) holes.insert(holes.end(), {2 * i, 1});
  const Box block = Box::whole({100}).value();
  EXPECT_FALSE(uncovered_boxes(block, holes, 10));
  EXPECT_EQ(uncovered_boxes(block, holes, 50)->size(), 50u);
}

TEST(UncoveredBoxes, EqualASearchByElement) {
  constexpr std::uint32_t kSeed = 20260531;
  std::mt19937 random(kSeed);
  const auto below = [&random](std::int64_t bound) {
    return std::uniform_int_distribution<std::int64_t>(0, bound - 1)(random);
  };
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << ", round " << round);
    Numbers boxes;
    std::set<Numbers> covered;
    for (std::int64_t count = below(6); count > 0; --count) {
      const Numbers begin{below(5), below(4), below(3)};
      const Numbers size{below(5 - begin[0] + 1), below(4 - begin[1] + 1), below(3 - begin[2] + 1)};
      boxes.insert(boxes.end(), begin.begin(), begin.end());
      boxes.insert(boxes.end(), size.begin(), size.end());
      for (std::int64_t i = 0; i < size[0]; ++i)
        for (std::int64_t j = 0; j < size[1]; ++j)
          for (std::int64_t k = 0; k < size[2]; ++k) covered.insert({begin[0] + i, begin[1] + j, begin[2] + k});
    }
    const auto rest = uncovered_boxes(Box::whole({5, 4, 3}).value(), boxes, 1000);
    std::int64_t elements = 0;
    for (const Box& part : *rest) {
      elements += part.element_count();
      const auto& offsets = part.offsets();
      EXPECT_FALSE(covered.contains({offsets[0], offsets[1], offsets[2]}));
    }
    EXPECT_EQ(elements + static_cast<std::int64_t>(covered.size()), 60);
  }
}

}  // namespace
}  // namespace cairn::plan

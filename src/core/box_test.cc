#include <cairn/tensor.h>
#include <gtest/gtest.h>

#include <limits>

namespace cairn {
namespace {

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

TEST(Box, RefusesSizesOutOfRange) {
  EXPECT_FALSE(Box::make({0}, {-1}));
  EXPECT_FALSE(Box::make({-1}, {1}));
  EXPECT_FALSE(Box::make({1}, {kHuge}));
  EXPECT_FALSE(Box::make({0, 0}, {1}));
  EXPECT_FALSE(Box::whole({std::int64_t{1} << 32, std::int64_t{1} << 32}));
  EXPECT_FALSE(Box::whole(Extents(kDimensionsMax + 1, 1)));
  EXPECT_FALSE(Box::whole({0, -1}));
  EXPECT_TRUE(Box::whole({kHuge}));
  EXPECT_TRUE(Box::whole({0, kHuge}));
  EXPECT_FALSE(Box::whole({0, kHuge, kHuge}));
}

TEST(Box, IntersectsWhereBothAre) {
  const Box a = Box::make({0, 4}, {4, 4}).value();
  const Box b = Box::make({2, 0}, {4, 6}).value();
  const auto common = intersection(a, b);
  ASSERT_TRUE(common);
  EXPECT_EQ(to_string(*common), "[2, 4) x [4, 6)");
  EXPECT_FALSE(intersection(a, Box::make({4, 4}, {1, 1}).value()));
  EXPECT_FALSE(intersection(a, Box::make({0, 4}, {0, 4}).value()));
  EXPECT_FALSE(intersection(a, Box::make({0}, {4}).value()));
  EXPECT_TRUE(intersection(Box(), Box()));
}

TEST(Box, LiesWithinAShapeOrNot) {
  const Box box = Box::make({2}, {3}).value();
  EXPECT_TRUE(box.within({5}));
  EXPECT_FALSE(box.within({4}));
  EXPECT_FALSE(box.within({5, 1}));
}

TEST(Extents, KeepMoreThanFitInside) {
  Extents many(10, 3);
  many[9] = 7;
  const Extents copy = many;
  EXPECT_EQ(copy, many);
  EXPECT_EQ(copy[9], 7);
  EXPECT_EQ(row_major_strides({2, 0, 3}), (Extents{3, 3, 1}));
}

}  // namespace
}  // namespace cairn

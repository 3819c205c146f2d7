#include "plan/flat_range.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "plan/testing/random_tiling.h"

namespace cairn::plan {
namespace {

std::int64_t flat_position(const Extents& shape, const Extents& index) {
  const Extents strides = row_major_strides(shape);
  std::int64_t position = 0;
  for (std::size_t i = 0; i < shape.size(); ++i) position += index[i] * strides[i];
  return position;
}

TEST(FlatRange, BoxesMakeUpTheRangeInOrder) {
  std::mt19937 random(5);
  for (int round = 0; round < 2000; ++round) {
    const Extents shape = random_shape(1 + random() % 4, 5, random);
    const std::int64_t count = element_count(shape).value();
    const std::int64_t begin = count == 0 ? 0 : static_cast<std::int64_t>(random()) % count;
    const std::int64_t end = begin + static_cast<std::int64_t>(random()) % (count - begin + 1);
    SCOPED_TRACE(testing::Message() << to_string(shape) << " from " << begin << " to " << end);
    std::int64_t position = begin;
    const std::vector<Box> boxes = boxes_of(shape, {begin, end});
    EXPECT_LE(boxes.size(), 2 * shape.size());
    for (const Box& box : boxes) {
      ASSERT_TRUE(box.within(shape));
      EXPECT_EQ(flat_position(shape, box.offsets()), position);
      Extents last = box.offsets();
      for (std::size_t i = 0; i < last.size(); ++i) last[i] += box.sizes()[i] - 1;
      EXPECT_EQ(flat_position(shape, last), position + box.element_count() - 1);  // contiguous
      position += box.element_count();
    }
    EXPECT_EQ(position, end);
  }
}

TEST(FlatRange, TheOneElementOfAScalar) {
  EXPECT_EQ(boxes_of({}, {0, 1}), std::vector<Box>{Box()});
  EXPECT_TRUE(boxes_of({}, {0, 0}).empty());
}

TEST(FlatRange, EmptyTensorHasNoBoxes) { EXPECT_TRUE(boxes_of({3, 0, 2}, {0, 0}).empty()); }

}  // namespace
}  // namespace cairn::plan

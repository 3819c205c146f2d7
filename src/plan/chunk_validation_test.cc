#include "plan/chunk_validation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "plan/testing/random_tiling.h"

namespace cairn::plan {
namespace {

Result<void> validate(const Extents& shape, const std::vector<Box>& chunks, Coverage coverage = Coverage::kWhole,
                      const std::vector<std::uint32_t>& ranks = {}) {
  const std::vector<std::int64_t> numbers = numbers_of(chunks);
  return validate_chunks({"w", shape, numbers, ranks}, coverage);
}

TEST(ChunkValidation, PassesExactCoversAlone) {
  std::mt19937 random(3);
  int passed = 0;
  for (int round = 0; round < 2000; ++round) {
    SCOPED_TRACE(testing::Message() << "round=" << round);
    const Extents shape = random_shape(2, 6, random);
    std::vector<Box> chunks;
    shatter(Box::whole(shape).value(), 3, random, chunks);
    const Box& victim = chunks[random() % chunks.size()];
    const std::size_t defect = random() % 4;
    if (defect == 1) chunks.push_back(victim);
    if (defect == 2) chunks.erase(chunks.begin());
    if (defect == 3) {
      Extents offsets = victim.offsets();
      offsets[random() % 2] += 1;
      chunks.push_back(box(offsets, {1, 1}));
      chunks.erase(chunks.begin());
    }
    std::vector<int> held(static_cast<std::size_t>(shape[0] * shape[1]), 0);
    bool once = true;
    for (const Box& chunk : chunks) {
      if (!chunk.within(shape)) once = false;
      for (std::int64_t i = 0; once && i < chunk.element_count(); ++i) {
        const std::int64_t row = chunk.offsets()[0] + i / chunk.sizes()[1];
        ++held[static_cast<std::size_t>(row * shape[1] + chunk.offsets()[1] + i % chunk.sizes()[1])];
      }
    }
    once = once && std::all_of(held.begin(), held.end(), [](int count) { return count == 1; });
    EXPECT_EQ(validate(shape, chunks).has_value(), once);
    passed += once ? 1 : 0;
  }
  EXPECT_GT(passed, 300);
  EXPECT_LT(passed, 1700);
}

TEST(ChunkValidation, NamesKeyChunksAndRanks) {
  const auto overlap = validate({4, 4}, {box({0, 0}, {2, 4}), box({1, 0}, {3, 4})}, Coverage::kWhole, {5, 9});
  ASSERT_FALSE(overlap);
  EXPECT_EQ(overlap.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(overlap.error().key(), "w");
  EXPECT_EQ(overlap.error().rank(), 9);
  EXPECT_EQ(overlap.error().actual(), "[1, 4) x [0, 4)");
  EXPECT_EQ(overlap.error().expected(), "no element in common with [0, 2) x [0, 4) of rank 5");

  const auto outside = validate({4}, {box({0}, {2}), box({2}, {3})}, Coverage::kPart, {5, 9});
  ASSERT_FALSE(outside);
  EXPECT_EQ(outside.error().rank(), 9);
  EXPECT_EQ(outside.error().expected(), "within [4]");
  EXPECT_EQ(outside.error().actual(), "[2, 5)");

  const auto hole = validate({4}, {box({0}, {3})});
  ASSERT_FALSE(hole);
  EXPECT_EQ(hole.error().key(), "w");
  EXPECT_EQ(hole.error().rank(), std::nullopt);
  EXPECT_EQ(hole.error().expected(), "4 elements of [4]");
  EXPECT_EQ(hole.error().actual(), "3 in 1 chunks");
}

TEST(ChunkValidation, AllowsHolesAloneInAPart) {
  EXPECT_TRUE(validate({4}, {box({1}, {2})}, Coverage::kPart));
  EXPECT_TRUE(validate({4}, {}, Coverage::kPart));
  EXPECT_FALSE(validate({4}, {}, Coverage::kWhole));
  EXPECT_FALSE(validate({4}, {box({0}, {2}), box({1}, {1})}, Coverage::kPart));
}

TEST(ChunkValidation, EmptyChunksOverlapNoChunk) {
  EXPECT_TRUE(validate({4}, {box({0}, {4}), box({4}, {0}), box({2}, {0})}));
  EXPECT_FALSE(validate({4}, {box({0}, {4}), box({5}, {0})}));
  EXPECT_TRUE(validate({0, 3}, {}));
}

TEST(ChunkValidation, PassesAnyChunksOfAScalar) { EXPECT_TRUE(validate({}, {Box(), Box()})); }

// A sum of sizes that overflows 64 bits must not pass for the right sum.
TEST(ChunkValidation, CountsHugeTensors) {
  constexpr std::int64_t kHalf = std::int64_t{1} << 62;
  EXPECT_TRUE(validate({kHalf}, {box({0}, {kHalf / 2}), box({kHalf / 2}, {kHalf / 2})}));
  EXPECT_FALSE(validate({kHalf}, {box({0}, {kHalf}), box({0}, {kHalf}), box({0}, {kHalf}), box({0}, {kHalf})}));
}

}  // namespace
}  // namespace cairn::plan

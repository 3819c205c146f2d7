#include "plan/chunk_index.h"

#include <gtest/gtest.h>

#include <random>

#include "plan/testing/random_tiling.h"

namespace cairn::plan {
namespace {

CatalogTensor tensor_of(Extents shape, const std::vector<Box>& chunks) {
  CatalogTensor tensor;
  tensor.fqn = "w";
  tensor.shape = std::move(shape);
  tensor.boxes = numbers_of(chunks);
  tensor.locations.assign(chunks.size(), {0, 0, 1});
  return tensor;
}

TEST(ChunkIndex, CoversEachElementForAnyCuts) {
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(testing::Message() << "round=" << round);
    const Extents shape = random_shape(1 + random() % 3, 9, random);
    std::vector<Box> saved;
    std::vector<Box> wanted;
    shatter(Box::whole(shape).value(), 4, random, saved);
    shatter(Box::whole(shape).value(), 2, random, wanted);
    const CatalogTensor tensor = tensor_of(shape, saved);
    const ChunkIndex index(tensor);
    for (const Box& target : wanted) {
      const auto reads = index.reads_for(target);
      ASSERT_TRUE(reads) << reads.error().what();
      std::int64_t covered = 0;
      for (const ReadItem& read : *reads) {
        covered += read.overlap.element_count();
        EXPECT_EQ(intersection(read.overlap, target), read.overlap);
        EXPECT_EQ(intersection(read.overlap, saved[read.chunk]), read.overlap);
      }
      EXPECT_EQ(covered, target.element_count());
    }
  }
}

TEST(ChunkIndex, SaysWhichKeyIsNotCovered) {
  const CatalogTensor tensor = tensor_of({8}, {box({0}, {3}), box({5}, {3})});
  const auto reads = ChunkIndex(tensor).reads_for(box({0}, {8}));
  ASSERT_FALSE(reads);
  EXPECT_EQ(reads.error().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(reads.error().key(), "w");
  EXPECT_TRUE(ChunkIndex(tensor).reads_for(box({5}, {3})));
}

TEST(ChunkIndex, AnOverlapFillsNoHoleElsewhere) {
  const CatalogTensor tensor = tensor_of({8}, {box({0}, {4}), box({2}, {4})});
  EXPECT_FALSE(ChunkIndex(tensor).reads_for(box({0}, {8})));
}

TEST(ChunkIndex, ARepeatedChunkIsReadOnce) {
  const CatalogTensor tensor = tensor_of({4}, {box({0}, {4}), box({0}, {4})});
  const auto reads = ChunkIndex(tensor).reads_for(box({1}, {2}));
  ASSERT_TRUE(reads);
  EXPECT_EQ(reads->size(), 1u);
}

TEST(ChunkIndex, NeedsNothingForNoElements) {
  const CatalogTensor tensor = tensor_of({4, 0}, {});
  const auto reads = ChunkIndex(tensor).reads_for(box({0, 0}, {4, 0}));
  ASSERT_TRUE(reads);
  EXPECT_TRUE(reads->empty());
}

TEST(ChunkIndex, NeedsTheOneChunkOfAScalar) {
  const CatalogTensor tensor = tensor_of({}, {Box()});
  EXPECT_EQ(ChunkIndex(tensor).reads_for(Box()).value().size(), 1u);
  EXPECT_FALSE(ChunkIndex(tensor_of({}, {})).reads_for(Box()));
}

}  // namespace
}  // namespace cairn::plan

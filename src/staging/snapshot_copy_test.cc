#include "staging/snapshot_copy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <numeric>
#include <vector>

#include "staging/arena_pool.h"

namespace cairn::staging {
namespace {

std::vector<float> counting(std::size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 1.0F);
  return values;
}

std::vector<float> staged(const Arena& arena, std::uint64_t offset, std::size_t count) {
  std::vector<float> values(count);
  std::memcpy(values.data(), arena.bytes().data() + offset, count * sizeof(float));
  return values;
}

TEST(SnapshotCopy, PutsEveryItemInItsPlace) {
  const std::vector<float> large = counting(3'000'001);  // several portions, the last one short
  const std::vector<float> matrix = counting(1500 * 2000);
  const std::vector<float> small = counting(3);
  const TensorView views[] = {
      TensorView::contiguous(large.data(), DType::kFloat32, {3'000'001}),
      {const_cast<float*>(matrix.data()), DType::kFloat32, {2000, 1500}, {1, 2000}},  // transposed
      TensorView::contiguous(small.data(), DType::kFloat32, {3}),
      TensorView::contiguous(static_cast<const void*>(nullptr), DType::kFloat32, {0, 4}),
  };
  const std::uint64_t second = 12'000'128;
  const std::uint64_t third = second + 12'000'000;
  std::vector<CopyItem> items{{&views[0], {}, 64}, {&views[1], {}, second}, {&views[2], {}, third}};
  items.push_back({&views[3], {}, third + 64});
  items.push_back({nullptr, "bytes", third + 64});
  std::vector<float> transposed(matrix.size());
  for (std::size_t i = 0; i < 2000; ++i) {
    for (std::size_t j = 0; j < 1500; ++j) transposed[i * 1500 + j] = matrix[j * 2000 + i];
  }
  for (const std::size_t threads : {1u, 4u}) {
    const auto arena = Arena::make().value();
    ASSERT_TRUE(arena->fit(third + 128));
    EXPECT_EQ(arena->staged(), 0U);
    ASSERT_TRUE(copy_into(*arena, items, {.arena_bytes = third + 128, .thread_count = threads}));
    EXPECT_EQ(arena->staged(), Arena::kAll);
    EXPECT_EQ(staged(*arena, 64, large.size()), large);
    EXPECT_EQ(staged(*arena, second, transposed.size()), transposed);
    EXPECT_EQ(staged(*arena, third, 3), small);
    EXPECT_EQ(std::memcmp(arena->bytes().data() + third + 64, "bytes", 5), 0);
  }
}

TEST(SnapshotCopy, StopsWhenInterrupted) {
  const std::vector<float> values = counting(8'000'000);
  const TensorView view = TensorView::contiguous(values.data(), DType::kFloat32, {8'000'000});
  const std::vector<CopyItem> items(1, {&view, {}, 0});
  const auto arena = Arena::make().value();
  ASSERT_TRUE(arena->fit(values.size() * 4));
  // A copy may end before the first call of `interrupted`, and then succeeds.
  const Result<void> copied = copy_into(
      *arena, items, {.arena_bytes = values.size() * 4, .thread_count = 2, .interrupted = [] { return true; }});
  if (!copied) {
    EXPECT_EQ(copied.error().code(), ErrorCode::kCancelled);
    EXPECT_LT(arena->staged(), values.size() * 4);
  }
}

TEST(Arena, ShrinksAtTwiceTheNeededSize) {
  const auto arena = Arena::make().value();
  ASSERT_TRUE(arena->fit(1 << 20));
  EXPECT_EQ(arena->bytes().size(), 1U << 20);
  arena->bytes()[5] = std::byte{7};
  ASSERT_TRUE(arena->fit((1 << 19) + 1));
  EXPECT_EQ(arena->bytes().size(), 1U << 20);
  EXPECT_EQ(arena->bytes()[5], std::byte{7});
  ASSERT_TRUE(arena->fit(4096));
  EXPECT_EQ(arena->bytes().size(), 4096U);
  ASSERT_TRUE(arena->fit(1 << 20));
  EXPECT_EQ(arena->bytes()[8192], std::byte{0});
}

TEST(ArenaPool, LendsUpToTheLimitThenWaits) {
  ArenaPool pool(2);
  const auto first = pool.take({}).value();
  auto second = pool.take({}).value();
  const std::uint64_t second_id = second->id();
  EXPECT_NE(first->id(), second->id());
  EXPECT_EQ(pool.take({}, [] { return true; }).error().code(), ErrorCode::kCancelled);
  auto third = std::async(std::launch::async, [&pool] { return pool.take({}).value()->id(); });
  second.reset();
  EXPECT_EQ(third.get(), second_id);
  EXPECT_EQ(pool.arena_count(), 2U);
}

TEST(ArenaPool, PrefersTheArenaThatWasUsedLast) {
  ArenaPool pool(2);
  auto first = pool.take({}).value();
  auto second = pool.take({}).value();
  const std::uint64_t first_id = first->id();
  second.reset();
  first.reset();
  EXPECT_EQ(pool.take({}).value()->id(), first_id);
}

}  // namespace
}  // namespace cairn::staging

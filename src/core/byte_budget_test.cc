#include "core/byte_budget.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace cairn {
namespace {

TEST(ByteBudget, GrowsWithTheInput) {
  EXPECT_EQ(ByteBudget(0).left(), ByteBudget::kBytesMin);
  EXPECT_EQ(ByteBudget(1000).left(), ByteBudget::kBytesMin + 1000 * ByteBudget::kBytesPerInputByte);
  EXPECT_EQ(ByteBudget(UINT64_MAX).left(), UINT64_MAX);
}

TEST(ByteBudget, KeepsTheRestAfterARefusal) {
  ByteBudget budget(0);
  ASSERT_TRUE(budget.charge(ByteBudget::kBytesMin - 10));
  const auto refused = budget.charge(11);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kUnsafe);
  EXPECT_EQ(budget.left(), 10u);
  EXPECT_TRUE(budget.charge(10));
}

TEST(ByteBudget, RefusesAnOverflowingProduct) {
  ByteBudget budget(0);
  EXPECT_FALSE(budget.charge(std::uint64_t{1} << 33, std::uint64_t{1} << 33));
  EXPECT_TRUE(budget.charge(16, 64));
  EXPECT_EQ(budget.left(), ByteBudget::kBytesMin - 1024);
}

}  // namespace
}  // namespace cairn

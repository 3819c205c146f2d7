#include "plan/file_balance.h"

#include <gtest/gtest.h>

#include <random>

#include "core/byte_units.h"

namespace cairn::plan {
namespace {

std::uint64_t bytes_of(const std::vector<BalancedItem>& items, const ItemPart& part) {
  return items[part.item].bytes / static_cast<std::uint64_t>(std::max<std::int64_t>(items[part.item].rows, 1)) *
         static_cast<std::uint64_t>(part.end - part.begin);
}

void expect_every_row_once(const std::vector<BalancedItem>& items, const std::vector<std::vector<ItemPart>>& files) {
  std::size_t item = 0;
  std::int64_t row = 0;
  for (const auto& file : files) {
    EXPECT_FALSE(file.empty());
    for (const ItemPart& part : file) {
      EXPECT_EQ(part.item, item);
      EXPECT_EQ(part.begin, row);
      row = part.end;
      if (row == items[item].rows) ++item, row = 0;
    }
  }
  EXPECT_EQ(item, items.size());
}

TEST(FileBalance, CutsALargeItemAmongFiles) {
  const std::vector<BalancedItem> items{{100 * kMiB, 1000}, {kMiB, 10}};
  const auto files = balance_files(items, 4);
  ASSERT_EQ(files.size(), 4u);
  expect_every_row_once(items, files);
  for (const auto& file : files) {
    std::uint64_t bytes = 0;
    for (const ItemPart& part : file) bytes += bytes_of(items, part);
    EXPECT_NEAR(static_cast<double>(bytes), 25.25 * kMiB, 0.3 * kMiB);
  }
}

TEST(FileBalance, EmptyAndOneRowItemsStayWhole) {
  const std::vector<BalancedItem> items{{0, 0}, {10 * kMiB, 1}, {0, 1}, {10, 5}};
  expect_every_row_once(items, balance_files(items, 3));
  const std::vector<BalancedItem> empty{{0, 1}, {0, 0}};
  EXPECT_EQ(balance_files(empty, 3).size(), 1u);
  EXPECT_TRUE(balance_files({}, 3).empty());
}

TEST(FileBalance, RandomItemsAreInEveryRowOnce) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<BalancedItem> items(random() % 20);
    for (BalancedItem& item : items) {
      item.rows = static_cast<std::int64_t>(random() % 7 == 0 ? 1 : 1 + random() % 50);
      item.bytes = static_cast<std::uint64_t>(item.rows) * (random() % (2 * kMiB));
    }
    const std::size_t count = 1 + random() % 9;
    const auto files = balance_files(items, count);
    EXPECT_LE(files.size(), count);
    expect_every_row_once(items, files);
  }
}

}  // namespace
}  // namespace cairn::plan

#include "core/extents_table.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(ExtentsTable, EqualListsAreKeptOnce) {
  ExtentsTable table;
  const std::uint32_t row = table.number_of({3, 1});
  EXPECT_EQ(table.number_of({3, 1}), row);
  EXPECT_NE(table.number_of({1, 3}), row);
  EXPECT_NE(table.number_of({3}), row);
  EXPECT_EQ(*table[row], (Extents{3, 1}));
}

TEST(ExtentsTable, EmptyListIsNotTheMissingOne) {
  ExtentsTable table;
  const std::uint32_t empty = table.number_of({});
  EXPECT_NE(empty, ExtentsTable::kNone);
  ASSERT_NE(table[empty], nullptr);
  EXPECT_TRUE(table[empty]->empty());
  EXPECT_EQ(table[ExtentsTable::kNone], nullptr);
}

TEST(ExtentsTable, LongListsKeepTheirNumber) {
  ExtentsTable table;
  const std::uint32_t number = table.number_of({1, 2, 3, 4, 5, 6});
  for (std::int64_t i = 0; i < 1000; ++i) table.number_of({i});
  EXPECT_EQ(table.number_of({1, 2, 3, 4, 5, 6}), number);
}

}  // namespace
}  // namespace cairn

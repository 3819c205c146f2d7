#include "format/dcp/name_table.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

namespace cairn::dcp {
namespace {

constexpr std::size_t kLong = 1000;  // a long name is known by its place in the text

TEST(NameTable, NumbersNewAndFindsKnownNames) {
  NameTable table;
  EXPECT_EQ(table.number_of("a"), 0u);
  EXPECT_EQ(table.number_of(""), 1u);
  EXPECT_EQ(table.number_of("b"), 2u);
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(table.number_of("b"), 2u);
    EXPECT_EQ(table.number_of("a"), 0u);
    EXPECT_EQ(table.number_of(""), 1u);
  }
  EXPECT_EQ(table[0], "a");
  EXPECT_EQ(table[1], "");
  EXPECT_EQ(table[2], "b");
}

TEST(NameTable, GivesEqualNamesOneNumber) {
  for (const std::size_t length : {std::size_t{5}, kLong}) {
    const std::string first(length, 'x');
    const std::string second = first;
    NameTable table;
    EXPECT_EQ(table.number_of(first), table.number_of(second));
    EXPECT_EQ(table.number_of(second), 0u);
  }
}

TEST(NameTable, SeparatesOverlappingNames) {
  const std::string text(2 * kLong, 'x');
  const std::string_view all = text;
  NameTable table;
  EXPECT_EQ(table.number_of(all.substr(0, kLong)), 0u);
  EXPECT_EQ(table.number_of(all.substr(1, kLong + 1)), 1u);
  EXPECT_EQ(table.number_of(all.substr(2, kLong)), 0u) << "the same bytes at another place";
}

TEST(NameTable, AgreesWithAMapInAnyOrder) {
  constexpr unsigned kSeed = 5;
  std::mt19937 random(kSeed);
  std::vector<std::string> names;
  for (int i = 0; i < 40; ++i) names.push_back(std::string(i % 5 == 0 ? kLong : 3, 'n') + std::to_string(i % 20));
  NameTable table;
  std::map<std::string, std::uint32_t> numbers;
  for (int i = 0; i < 5'000; ++i) {
    const std::string& name = names[random() % names.size()];
    const std::uint32_t expected = numbers.try_emplace(name, static_cast<std::uint32_t>(numbers.size())).first->second;
    ASSERT_EQ(table.number_of(name), expected) << "seed=" << kSeed << " i=" << i;
    ASSERT_EQ(table[expected], name);
  }
}

}  // namespace
}  // namespace cairn::dcp

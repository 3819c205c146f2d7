#include "load/read_filter.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace cairn::checkpointer {
namespace {

TEST(ReadFilters, HoldAllTheirReadsAndFewOthers) {
  std::mt19937_64 random(1);
  ReadFilter filter(8, 7);
  std::vector<std::uint64_t> reads(300);
  for (std::uint64_t& read : reads) filter.add(read = random());
  for (const std::uint64_t read : reads) EXPECT_TRUE(filter.may_hold(read));
  int wrong = 0;
  for (int i = 0; i < 1000; ++i) wrong += filter.may_hold(random()) ? 1 : 0;
  EXPECT_LT(wrong, 60);
}

TEST(ReadFilters, SurviveTheEncoding) {
  ReadFilter filter(8, 7);
  filter.add(0x0123456789ABCDEF);
  const std::string bytes = filter.encode();
  EXPECT_EQ(bytes.size(), ReadFilter::encoded_bytes(8));
  const ReadFilter decoded = ReadFilter::decode(bytes + "more", 8);
  EXPECT_EQ(decoded.host(), 7u);
  EXPECT_TRUE(decoded.may_hold(0x0123456789ABCDEF));
  EXPECT_FALSE(decoded.may_hold(1));
  EXPECT_EQ(ReadFilter::decode(bytes.substr(1), 8).host(), 0u);
}

TEST(ReadFilters, ShrinkWithTheNumberOfRanks) {
  EXPECT_EQ(ReadFilter::encoded_bytes(1), ReadFilter::encoded_bytes(2048));
  EXPECT_EQ(ReadFilter::encoded_bytes(16384), 8u + 64u);
  EXPECT_GE(ReadFilter::encoded_bytes(1U << 30), 8u + 16u);
}

}  // namespace
}  // namespace cairn::checkpointer

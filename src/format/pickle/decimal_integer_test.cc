#include "format/pickle/decimal_integer.h"

#include <gtest/gtest.h>

#include <string>

#include "format/pickle/long_integer.h"

namespace cairn::pickle {
namespace {

std::string hex(std::string_view text) {
  std::string digits;
  const auto number = decimal_integer(text);
  if (!number) return "none";
  for (const std::byte byte : *number) {
    digits += "0123456789abcdef"[std::to_integer<unsigned>(byte) >> 4];
    digits += "0123456789abcdef"[std::to_integer<unsigned>(byte) & 15];
  }
  return digits;
}

TEST(DecimalInteger, IsTheShortestTwosComplement) {
  for (const std::int64_t number : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{127}, std::int64_t{128},
                                    std::int64_t{-129}, std::int64_t{1} << 40, INT64_MAX, INT64_MIN}) {
    const auto bytes = decimal_integer(std::to_string(number) + "L");
    ASSERT_TRUE(bytes) << number;
    EXPECT_EQ(small_integer(*bytes), number);
    EXPECT_EQ(shortest(*bytes).size(), bytes->size()) << number;
  }
  EXPECT_EQ(hex("128"), "8000");
  EXPECT_EQ(hex("-128"), "80");
  EXPECT_EQ(hex("18446744073709551616L"), "000000000000000001");
  EXPECT_EQ(hex("-18446744073709551616"), "0000000000000000ff");
}

TEST(DecimalInteger, OtherTextIsNoNumber) {
  for (const char* text : {"", "-", "L", "-L", "1x", "0x1", "1.0", " 1", "--1", "1LL"}) EXPECT_EQ(hex(text), "none");
  EXPECT_TRUE(decimal_integer(std::string(kDecimalDigitsMax, '9')));
  EXPECT_FALSE(decimal_integer(std::string(kDecimalDigitsMax + 1, '9')));
}

}  // namespace
}  // namespace cairn::pickle

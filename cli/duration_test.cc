#include "duration.h"

#include <gtest/gtest.h>

#include <chrono>

namespace cairn::cli {
namespace {

TEST(DurationText, ReadsANumberWithAUnit) {
  EXPECT_EQ(duration_of("90s"), std::chrono::seconds(90));
  EXPECT_EQ(duration_of("30m"), std::chrono::seconds(1800));
  EXPECT_EQ(duration_of("12h"), std::chrono::seconds(43'200));
  EXPECT_EQ(duration_of("7d"), std::chrono::seconds(604'800));
  EXPECT_EQ(duration_of("2w"), std::chrono::seconds(1'209'600));
}

TEST(DurationText, RefusesOtherTexts) {
  for (const char* text : {"", "7", "d", "0d", "-7d", "+7d", " 7d", "7 d", "7d ", "7dd", "7.5d", "7y", "7D", "1e3s"}) {
    EXPECT_EQ(duration_of(text), std::nullopt) << text;
  }
}

TEST(DurationText, RefusesMoreThanTheClockHolds) {
  EXPECT_EQ(duration_of("1000000000000s"), std::chrono::seconds(1'000'000'000'000));
  EXPECT_EQ(duration_of("1000000000001s"), std::nullopt);
  EXPECT_EQ(duration_of("9223372036854775807w"), std::nullopt);
  EXPECT_EQ(duration_of("99999999999999999999s"), std::nullopt);
}

}  // namespace
}  // namespace cairn::cli

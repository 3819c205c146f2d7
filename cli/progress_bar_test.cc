#include "progress_bar.h"

#include <gtest/gtest.h>

#include <limits>

namespace cairn::cli {
namespace {

TEST(ProgressBar, ShowsTheShareAndTheBytes) {
  constexpr std::uint64_t kGiB = 1ULL << 30;
  EXPECT_EQ(bar_text("verifying", 0, 0, 80), "verifying [..............................]   0%  0 B of 0 B");
  EXPECT_EQ(bar_text("verifying", kGiB, 2 * kGiB, 80),
            "verifying [###############...............]  50%  1.0 GiB of 2.0 GiB");
  EXPECT_EQ(bar_text("verifying", 3 * kGiB, 2 * kGiB, 80),
            "verifying [##############################] 100%  2.0 GiB of 2.0 GiB");
}

TEST(ProgressBar, FitsTheTerminal) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  for (const std::size_t columns : {0U, 1U, 2U, 40U, 200U}) {
    EXPECT_LE(bar_text("verifying", kMost - 1, kMost, columns).size(), columns == 0 ? 0 : columns - 1);
  }
}

TEST(ProgressBar, ShowsRateAndRemainingTime) {
  using Seconds = std::chrono::duration<double>;
  constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
  EXPECT_EQ(rate_text(kGiB, 3 * kGiB, Seconds(4)), "  256.0 MiB/s, 0:08 left");
  EXPECT_EQ(rate_text(kGiB, 101 * kGiB, Seconds(60)), "  17.1 MiB/s, 1:40:00 left");
  EXPECT_EQ(rate_text(0, kGiB, Seconds(1)), "");
  EXPECT_EQ(rate_text(kGiB, 0, Seconds(1)), "");
}

}  // namespace
}  // namespace cairn::cli

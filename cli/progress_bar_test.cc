#include "progress_bar.h"

#include <gtest/gtest.h>

#include <limits>

namespace cairn::cli {
namespace {

constexpr std::uint64_t kGibibyte = std::uint64_t{1} << 30;

WorkInProgress verification(std::uint64_t done, std::uint64_t total) {
  WorkInProgress work;
  work.kind = WorkKind::kVerify;
  work.elapsed = std::chrono::seconds(4);
  work.done = done;
  work.total = total;
  return work;
}

TEST(ProgressBar, ShowsTheShareAndTheBytes) {
  EXPECT_EQ(bar_text("verifying", 0, 0, 80), "verifying [..............................]   0%  0 B of 0 B");
  EXPECT_EQ(bar_text("verifying", kGibibyte, 2 * kGibibyte, 80),
            "verifying [###############...............]  50%  1.0 GiB of 2.0 GiB");
  EXPECT_EQ(bar_text("verifying", 3 * kGibibyte, 2 * kGibibyte, 80),
            "verifying [##############################] 100%  2.0 GiB of 2.0 GiB");
  EXPECT_EQ(bar_text("removing", 1, 2, 80, ProgressUnit::kFiles),
            "removing [###############...............]  50%  1 of 2 files");
}

TEST(ProgressBar, FitsTheTerminal) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  for (const std::size_t columns : {0U, 1U, 2U, 40U, 200U}) {
    const std::size_t most = columns == 0 ? 0 : columns - 1;
    EXPECT_LE(bar_text("verifying", kMost - 1, kMost, columns).size(), most);
    EXPECT_LE(line_of_terminal(verification(1, 2), columns).size(), most);
    EXPECT_LE(line_of_terminal(verification(1, 0), columns).size(), most);
  }
}

TEST(ProgressBar, ShowsRateAndRemainingTime) {
  using Seconds = std::chrono::duration<double>;
  EXPECT_EQ(rate_text(kGibibyte, 3 * kGibibyte, Seconds(4)), "  256.0 MiB/s, 0:08 left");
  EXPECT_EQ(rate_text(kGibibyte, 101 * kGibibyte, Seconds(60)), "  17.1 MiB/s, 1:40:00 left");
  EXPECT_EQ(rate_text(0, kGibibyte, Seconds(1)), "");
  EXPECT_EQ(rate_text(kGibibyte, 0, Seconds(1)), "");
  EXPECT_EQ(rate_text(3, 9, Seconds(2), ProgressUnit::kDirectories), "  1.5 directories/s, 0:04 left");
}

TEST(ProgressBar, ShowsTheTimeWithoutATotal) {
  EXPECT_EQ(line_of_terminal(verification(0, 0), 80), "verifying, 0:04");
  EXPECT_EQ(line_of_log(verification(kGibibyte, 0)), "cairn: verifying, 0:04, 1.0 GiB\n");
}

TEST(ProgressBar, HasOneLineForALog) {
  EXPECT_EQ(line_of_log(verification(kGibibyte, 3 * kGibibyte)),
            "cairn: verifying,  33%  1.0 GiB of 3.0 GiB  256.0 MiB/s, 0:08 left\n");
}

}  // namespace
}  // namespace cairn::cli

#include <cairn/inspect.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <string>

#include "storage/testing/hanging_reads.h"
#include "storage/testing/scratch_directory.h"

namespace cairn {
namespace {

constexpr std::uint64_t kBenchBytes = std::uint64_t{8} << 20;

class DirectoryBenchTest : public testing::Test {
 protected:
  void TearDown() override { EXPECT_TRUE(std::filesystem::is_empty(scratch_.path())); }

  storage::ScratchDirectory scratch_;
};

TEST_F(DirectoryBenchTest, EachRoundHasAllRates) {
  const BenchReport report = bench_directory(scratch_.path(), {.bytes = kBenchBytes + 5, .rounds = 2}).value();
  EXPECT_EQ(report.bytes, kBenchBytes);
  EXPECT_EQ(report.tensors, 1U);
  ASSERT_EQ(report.rounds.size(), 2U);
  for (const BenchRates& round : report.rounds) {
    EXPECT_GT(round.raw_write, 0);
    EXPECT_GT(round.save, 0);
    EXPECT_GT(round.raw_read, 0);
    EXPECT_GT(round.load, 0);
  }
  EXPECT_DOUBLE_EQ(report.median.save, (report.rounds[0].save + report.rounds[1].save) / 2);
}

TEST_F(DirectoryBenchTest, InterruptionLeavesNothing) {
  for (int calls_before : {0, 1, 2, 4, 8}) {
    const auto result = bench_directory(
        scratch_.path(), {.bytes = kBenchBytes, .interrupted = [&calls_before] { return calls_before-- <= 0; }});
    if (!result) EXPECT_EQ(result.error().code(), ErrorCode::kCancelled) << result.error().what();
    EXPECT_TRUE(std::filesystem::is_empty(scratch_.path())) << calls_before;
  }
}

TEST_F(DirectoryBenchTest, HangingFileExceedsItsDeadline) {
  const storage::HangingReads hanging("/raw");
  const SaveDeadlines deadlines{std::chrono::milliseconds(300), std::chrono::minutes(1), std::chrono::minutes(1)};
  const auto result = bench_directory(scratch_.path(), {.bytes = kBenchBytes, .deadlines = deadlines});
  EXPECT_EQ(result.error().code(), ErrorCode::kUnavailable);
  EXPECT_NE(std::string(result.error().what()).find("the storage hangs: reading 'raw'"), std::string::npos)
      << result.error().what();
}

TEST_F(DirectoryBenchTest, TheRoomIsCheckedFirst) {
  EXPECT_EQ(bench_directory(scratch_.path(), {.bytes = UINT64_MAX / 2}).error().code(), ErrorCode::kNoSpace);
  EXPECT_EQ(bench_directory(scratch_.path(), {.bytes = 5}).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(bench_directory(scratch_.path() / "missing").error().code(), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace cairn

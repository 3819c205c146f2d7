#include "commit/progress_tracker.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

namespace cairn::commit {
namespace {

using namespace std::chrono_literals;
using storage::OperationKind;
using storage::OperationWatch;

TEST(ProgressLine, CarriesThePendingCall) {
  ProgressReport report{SavePhase::kWriting, 5, 7, {}};
  report.pending = {OperationKind::kSync, "syncing 'a file'", 1500ms};
  const auto decoded = decode_progress_line(encode_progress_line(report));
  ASSERT_TRUE(decoded && decoded->pending);
  EXPECT_EQ(decoded->phase, SavePhase::kWriting);
  EXPECT_EQ(decoded->bytes_written, 5u);
  EXPECT_EQ(decoded->bytes_total, 7u);
  EXPECT_EQ(decoded->pending->kind, OperationKind::kSync);
  EXPECT_EQ(decoded->pending->what, "syncing 'a file'");
  EXPECT_EQ(decoded->pending->age, 1500ms);
}

TEST(ProgressLine, RefusesUnknownWords) {
  const std::string line = encode_progress_line({SavePhase::kWriting, 5, 7, {}});
  ASSERT_TRUE(decode_progress_line(line));
  for (const std::string& known : {std::string("progress"), std::string("writing"), std::string(" - ")}) {
    std::string unknown = line;
    ASSERT_NE(line.find(known), std::string::npos) << line;
    unknown.replace(line.find(known), known.size(), " x ");
    EXPECT_FALSE(decode_progress_line(unknown)) << unknown;
  }
}

TEST(ProgressReports, NameTheCallThatHangs) {
  ProgressTracker progress;
  progress.phase = SavePhase::kWriting;
  OperationWatch operations;
  EXPECT_FALSE(progress.report(&operations).pending);
  const OperationWatch::Call call(operations, OperationKind::kSync, "syncing", "file");
  const auto begin = OperationWatch::Clock::now();
  operations.tick(begin);
  operations.tick(begin + 1s);
  const ProgressReport report = progress.report(&operations);
  EXPECT_EQ(report.phase, SavePhase::kSyncing);
  ASSERT_TRUE(report.pending);
  EXPECT_EQ(report.pending->kind, OperationKind::kSync);
  SaveDeadlines deadlines;
  EXPECT_FALSE(stall_in(report, deadlines));
  deadlines.sync = 999ms;
  EXPECT_TRUE(stall_in(report, deadlines));
}

}  // namespace
}  // namespace cairn::commit

#include <cairn/managed_run.h>
#include <gtest/gtest.h>

#include <string>

#include "storage/testing/scratch_directory.h"

namespace cairn {
namespace {

TEST(ManagedRuns, StopIsDueUntilASaveBegins) {
  const storage::ScratchDirectory scratch;
  const auto run = ManagedRun::open(scratch.path() / "run", {}).value();
  ASSERT_TRUE(run->request_stop());
  EXPECT_EQ(run->due(1).value(), Due::kStop);
  EXPECT_EQ(run->due(2).value(), Due::kStop);
  ASSERT_TRUE(run->begin(2));
  run->dropped();
  EXPECT_EQ(run->due(3).value(), Due::kStop);
  ASSERT_TRUE(run->begin(3));
  EXPECT_EQ(run->due(4).value(), Due::kNo);
}

TEST(ManagedRuns, StopLeavesOutLargeNotes) {
  const storage::ScratchDirectory scratch;
  int warnings = 0;
  ManagedRunOptions warning;
  warning.warn = [&warnings](const Error&) { ++warnings; };
  const auto run = ManagedRun::open(scratch.path() / "run", warning).value();
  const ManagedSave save{.metrics = {{"loss", 0.5}}, .notes = "{\"text\": \"" + std::string(65'536, 'x') + "\"}"};
  EXPECT_EQ(run->begin(1, save).error().code(), ErrorCode::kInvalidArgument);
  ASSERT_TRUE(run->request_stop());
  EXPECT_EQ(run->due(2).value(), Due::kStop);
  const Result<SaveStart> start = run->begin(2, save);
  ASSERT_TRUE(start) << start.error().what();
  EXPECT_NE(start->notes.find("\"loss\": 0.5"), std::string::npos) << start->notes;
  EXPECT_EQ(warnings, 1);
}

}  // namespace
}  // namespace cairn

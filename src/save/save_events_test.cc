// The events of saves, loads and verifications on real files.
#include <cairn/cairn.h>
#include <cairn/collectives.h>
#include <cairn/events.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "save/testing/sample_state.h"
#include "storage/testing/scratch_directory.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using Kinds = std::vector<EventKind>;
using enum EventKind;

Kinds kinds_in(const std::vector<Event>& events) {
  Kinds kinds;
  for (const Event& event : events) kinds.push_back(event.kind);
  return kinds;
}

class SaveEvents : public testing::Test {
 protected:
  std::vector<Event> take() { return queue_.take(std::chrono::milliseconds(0)); }

  AsyncCheckpointerOptions with_process() const {
    AsyncCheckpointerOptions options;
    options.process = process_;
    return options;
  }
  // All events of an asynchronous save.
  std::vector<Event> save_with(const AsyncCheckpointerOptions& options) {
    AsyncCheckpointer checkpointer(options);
    const auto save = checkpointer.save(directory_, state_.dict());
    EXPECT_TRUE(save) << save.error().what();
    const auto& report = save->write.get();
    EXPECT_TRUE(report) << report.error().what();
    return take();
  }

  storage::ScratchDirectory scratch_;
  fs::path directory_ = scratch_.path() / "step-40";
  SampleState state_{40};
  std::shared_ptr<CheckpointProcess> process_ = CheckpointProcess::make();
  EventQueue queue_{1000};
};

TEST_F(SaveEvents, StepsOfABlockingSave) {
  const auto report = save(directory_, state_.dict());
  ASSERT_TRUE(report) << report.error().what();
  const std::vector<Event> events = take();
  ASSERT_EQ(kinds_in(events), (Kinds{kBegun, kPlanned, kWritten, kCommitted}));
  for (const Event& event : events) {
    EXPECT_EQ(event.operation, EventOperation::kSave);
    EXPECT_FALSE(event.asynchronous);
    EXPECT_EQ(event.directory, directory_.string());
    EXPECT_EQ(event.step, 40u);
    EXPECT_EQ(event.id, events[0].id);
    EXPECT_GE(event.since_begun, event.duration);
  }
  EXPECT_EQ(events[2].bytes, fs::file_size(directory_ / "__0_0.distcp"));
  EXPECT_EQ(events[3].bytes, report->bytes_written);
}

TEST_F(SaveEvents, CauseOfAFailedSave) {
  std::ofstream(scratch_.path() / "file") << "in the way";
  const auto report = save(scratch_.path() / "file" / "step-1", state_.dict());
  ASSERT_FALSE(report);
  const std::vector<Event> events = take();
  ASSERT_EQ(kinds_in(events), (Kinds{kBegun, kFailed}));
  EXPECT_EQ(events[1].cause->code(), report.error().code());
}

TEST_F(SaveEvents, FailureBeforeTheCommit) {
  SaveOptions options;
  options.before_commit = [] { return Error(ErrorCode::kCancelled, "not wanted"); };
  ASSERT_FALSE(save(directory_, state_.dict(), options));
  EXPECT_EQ(kinds_in(take()), (Kinds{kBegun, kPlanned, kWritten, kFailed}));
}

TEST_F(SaveEvents, ExceptionOfTheCaller) {
  SaveOptions options;
  options.before_commit = []() -> Result<void> { throw std::runtime_error("Ctrl-C"); };
  EXPECT_THROW((void)save(directory_, state_.dict(), options), std::runtime_error);
  EXPECT_EQ(kinds_in(take()).back(), kFailed);
}

TEST_F(SaveEvents, StepsOfASaveByThreads) {
  const std::vector<Event> events = save_with({});
  ASSERT_EQ(kinds_in(events), (Kinds{kBegun, kPlanned, kStaged, kWritten, kCommitted}));
  for (const Event& event : events) {
    EXPECT_TRUE(event.asynchronous);
    EXPECT_EQ(event.process_id, getpid());
  }
  EXPECT_EQ(events[3].bytes, fs::file_size(directory_ / "__0_0.distcp"));
}

TEST_F(SaveEvents, StepsOfASaveByAProcess) {
  const std::vector<Event> events = save_with(with_process());
  ASSERT_EQ(kinds_in(events), (Kinds{kBegun, kPlanned, kStaged, kWritten, kCommitted}));
  EXPECT_EQ(events[3].process_id, process_->pid());
  EXPECT_EQ(events[3].bytes, fs::file_size(directory_ / "__0_0.distcp"));
  EXPECT_GT(events[3].duration.count(), 0);
  EXPECT_EQ(events[3].directory, directory_.string());
}

TEST_F(SaveEvents, FailureOfAKilledProcess) {
  AsyncCheckpointer checkpointer(with_process());
  ASSERT_TRUE(checkpointer.save(directory_, state_.dict())->write.get());
  (void)take();
  AsyncSaveOptions options;
  options.asynchronous_staging = true;
  options.confirm_sources = [this]() -> Result<void> {  // the copies wait, and so does the writer
    kill(static_cast<pid_t>(process_->pid()), SIGKILL);
    return {};
  };
  const auto save = checkpointer.save(directory_, state_.dict(), options);
  ASSERT_TRUE(save) << save.error().what();
  ASSERT_FALSE(save->write.get());
  const std::vector<Event> events = take();
  EXPECT_EQ(events.front().kind, kBegun);
  const auto failed = std::find_if(events.begin(), events.end(), [](const Event& e) { return e.kind == kFailed; });
  ASSERT_NE(failed, events.end());
  EXPECT_NE(std::string(failed->cause->what()).find("was killed by signal 9"), std::string::npos);
  EXPECT_EQ(std::count_if(events.begin(), events.end(), [](const Event& e) { return e.kind == kCommitted; }), 0);
}

TEST_F(SaveEvents, FailureBeforeTheWriter) {
  AsyncSaveOptions options;
  options.save.notes = "no JSON";
  AsyncCheckpointer checkpointer;
  ASSERT_FALSE(checkpointer.save(directory_, state_.dict(), options));
  EXPECT_EQ(kinds_in(take()), (Kinds{kBegun, kFailed}));
}

TEST_F(SaveEvents, StepsOfEachRank) {
  constexpr std::uint32_t kRanks = 3;
  const auto group = make_local_group(kRanks);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      SaveOptions options;
      options.collectives = group[rank].get();
      const SampleState state(5);
      EXPECT_TRUE(save(directory_, state.dict(), options));
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::vector<Event> events = take();
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    std::vector<Event> mine;
    std::copy_if(events.begin(), events.end(), std::back_inserter(mine),
                 [&](const Event& event) { return event.rank == rank; });
    EXPECT_EQ(kinds_in(mine), (Kinds{kBegun, kPlanned, kWritten, kCommitted})) << rank;
    for (const Event& event : mine) EXPECT_EQ(event.rank_count, kRanks);
  }
}

TEST_F(SaveEvents, StepsOfASuccessfulLoad) {
  ASSERT_TRUE(save(directory_, state_.dict()));
  (void)take();
  SampleState target(0);
  const auto report = load(directory_, target.dict());
  ASSERT_TRUE(report) << report.error().what();
  const std::vector<Event> events = take();
  ASSERT_EQ(kinds_in(events), (Kinds{kBegun, kPlanned, kLoaded}));
  EXPECT_EQ(events[2].operation, EventOperation::kLoad);
  EXPECT_EQ(events[2].bytes, report->bytes_read);
}

TEST_F(SaveEvents, CauseOfAFailedLoad) {
  SampleState target(0);
  ASSERT_FALSE(load(directory_, target.dict()));
  const std::vector<Event> events = take();
  ASSERT_EQ(kinds_in(events), (Kinds{kBegun, kFailed}));
  EXPECT_EQ(events[1].cause->code(), ErrorCode::kNotFound);
}

TEST_F(SaveEvents, FailureBeforeALoad) {
  tell_failed_load(directory_, Error(ErrorCode::kCorrupt, "no zip file"), {});
  const std::vector<Event> events = take();
  ASSERT_EQ(kinds_in(events), (Kinds{kBegun, kFailed}));
  EXPECT_EQ(events[1].operation, EventOperation::kLoad);
  EXPECT_EQ(events[1].step, 40u);
  EXPECT_EQ(events[1].cause->code(), ErrorCode::kCorrupt);
}

TEST_F(SaveEvents, VerificationOfNoCheckpoint) {
  ASSERT_FALSE(verify(directory_));
  const std::vector<Event> events = take();
  ASSERT_EQ(kinds_in(events), (Kinds{kBegun, kFailed}));
  EXPECT_EQ(events[1].operation, EventOperation::kVerify);
  EXPECT_EQ(events[1].cause->code(), ErrorCode::kNotFound);
}

TEST_F(SaveEvents, LoadOfAnOpenCheckpoint) {
  ASSERT_TRUE(save(directory_, state_.dict()));
  const Checkpoint checkpoint = open(directory_).value();
  (void)take();
  SampleState target(0);
  ASSERT_TRUE(checkpoint.load(target.dict()));
  EXPECT_EQ(kinds_in(take()), (Kinds{kBegun, kPlanned, kLoaded}));
  PlannedLoad planned = plan_load(checkpoint, target.dict(), {}).value();
  ASSERT_TRUE(planned.run([](std::size_t, const Result<void>&) {}));
  EXPECT_EQ(kinds_in(take()), (Kinds{kBegun, kPlanned, kLoaded}));
}

TEST_F(SaveEvents, ProblemsOfAVerification) {
  ASSERT_TRUE(save(directory_, state_.dict()));
  (void)take();
  ASSERT_TRUE(verify(directory_));
  std::vector<Event> events = take();
  ASSERT_EQ(kinds_in(events), (Kinds{kBegun, kVerified}));
  EXPECT_FALSE(events[1].cause);
  EXPECT_GT(events[1].bytes, 0u);
  fs::resize_file(directory_ / "__0_0.distcp", 100);
  ASSERT_TRUE(verify(directory_));
  events = take();
  ASSERT_EQ(kinds_in(events), (Kinds{kBegun, kVerified}));
  EXPECT_TRUE(events[1].cause);
}

TEST_F(SaveEvents, SeparateStepsOfASave) {
  SaveOptions options;
  const auto claim = SaveClaim::make(directory_, options);
  ASSERT_TRUE(claim) << claim.error().what();
  auto share = RankShare::write(directory_, claim->ticket(), 0, state_.dict(), options);
  ASSERT_TRUE(share) << share.error().what();
  EXPECT_EQ(kinds_in(take()), (Kinds{kBegun, kBegun, kWritten}));
  share->withdraw();
  const std::vector<Event> events = take();
  ASSERT_EQ(kinds_in(events), (Kinds{kFailed}));
  EXPECT_EQ(events[0].cause->code(), ErrorCode::kCancelled);
}

TEST_F(SaveEvents, RemovalByARetentionRule) {
  ASSERT_TRUE(save(directory_, state_.dict()));
  ASSERT_TRUE(save(scratch_.path() / "step-41", state_.dict()));
  (void)take();
  PruneOptions options;
  options.rule.last = 1;
  options.dry_run = true;
  ASSERT_TRUE(prune(scratch_.path(), options));
  EXPECT_TRUE(take().empty());
  options.dry_run = false;
  const auto report = prune(scratch_.path(), options);
  ASSERT_TRUE(report) << report.error().what();
  const std::vector<Event> events = take();
  ASSERT_EQ(kinds_in(events), (Kinds{kDeleted}));
  EXPECT_EQ(events[0].operation, EventOperation::kRemove);
  EXPECT_EQ(events[0].step, 40u);
  EXPECT_EQ(events[0].bytes, report->bytes);
}

TEST_F(SaveEvents, RemovalOfACheckpoint) {
  ASSERT_FALSE(remove_checkpoint(directory_));
  ASSERT_TRUE(save(directory_, state_.dict()));
  (void)take();
  ASSERT_TRUE(remove_checkpoint(directory_));
  EXPECT_EQ(kinds_in(take()), (Kinds{kDeleted}));
}

}  // namespace
}  // namespace cairn

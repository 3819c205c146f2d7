// Saves whose storage hangs: a hanging save fails within the deadlines, never commits later, and leaves the save's
// thread alone.
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>

#include "staging/arena_pool.h"
#include "storage/testing/blocking_storage.h"
#include "storage/testing/scratch_directory.h"
#include "writer/testing/staged_sample.h"
#include "writer/thread_writer.h"

namespace cairn::writer {
namespace {

using storage::Blockade;
using storage::ScratchDirectory;
using storage::short_for;

class Stalls : public testing::Test {
 protected:
  ~Stalls() override {
    blockade_->release();
    await_end();
  }

  std::unique_ptr<ThreadWriter> make() const {
    const auto open = [shared = std::weak_ptr(blockade_)](const std::string& directory, bool may_make,
                                                          mode_t umask) -> Result<std::unique_ptr<storage::Storage>> {
      const std::shared_ptr<Blockade> blockade = shared.lock();  // the fixture ends after the last call
      blockade->pass(Blockade::Call::kOpenDirectory);
      CAIRN_TRY_ASSIGN(auto opened, open_or_make_directory(directory, may_make, umask));
      return std::unique_ptr<storage::Storage>(std::make_unique<storage::BlockingStorage>(std::move(opened), blockade));
    };
    return std::make_unique<ThreadWriter>(os::Priority{}, open);
  }
  // Begins and stages a save.
  void begin(WriterSave& save, StagedSample& sample, const SaveDeadlines& deadlines) const {
    begin_with(save, sample, save.claim(sample.claim_request(directory_.path()), {}).value(), deadlines);
  }
  void begin_with(WriterSave& save, StagedSample& sample, const commit::SaveTicket& ticket,
                  const SaveDeadlines& deadlines) const {
    SaveRequest request = sample.request(directory_.path(), ticket);
    request.deadlines = deadlines;
    ASSERT_TRUE(save.begin(request));
    sample.stage();
    ASSERT_TRUE(save.staged());
  }
  // Waits until every hung thread has resumed and cleaned up. Each thread destroys the storage last.
  void await_end() const {
    const auto until = std::chrono::steady_clock::now() + kGenerous;
    while (blockade_.use_count() > 1) {
      ASSERT_LT(std::chrono::steady_clock::now(), until);
      std::this_thread::yield();
    }
  }
  void expect_only(int number) const {
    await_end();
    EXPECT_EQ(checkpoint_in(directory_.path()), number);
  }

  ScratchDirectory directory_;
  std::shared_ptr<Blockade> blockade_ = std::make_shared<Blockade>();  // shared with the open storages
};

class StalledCalls : public Stalls, public testing::WithParamInterface<Blockade::Call> {};

TEST_P(StalledCalls, FailTheSaveForGood) {
  const auto writer = make();
  StagedSample good(1);
  ASSERT_TRUE(save_now(*writer, good, directory_.path()));
  blockade_->block(GetParam());
  StagedSample sample(2);
  End end;
  const auto save = writer->start(end.callback()).value();
  begin(*save, sample, short_for(GetParam()));
  const auto ended = end.wait();
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code(), ErrorCode::kUnavailable);
  EXPECT_NE(std::string(ended.error().what()).find("has not returned"), std::string::npos) << ended.error().what();
  EXPECT_TRUE(sample.arena()->is_stuck());
  blockade_->release();
  expect_only(1);
  StagedSample next(3);
  ASSERT_TRUE(save_now(*writer, next, directory_.path()));
  expect_only(3);
}

INSTANTIATE_TEST_SUITE_P(ByCall, StalledCalls,
                         testing::Values(Blockade::Call::kWrite, Blockade::Call::kFinish, Blockade::Call::kPublish,
                                         Blockade::Call::kSync),
                         [](const auto& tested) { return "Call" + std::to_string(static_cast<int>(tested.param)); });

TEST_F(Stalls, NoticedAfterAnIdleTime) {
  const auto writer = make();
  StagedSample good(1);
  ASSERT_TRUE(save_now(*writer, good, directory_.path()));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // the watch looks every 100 ms, and finds no save
  blockade_->block(Blockade::Call::kWrite);
  StagedSample sample(2);
  End end;
  const auto save = writer->start(end.callback()).value();
  begin(*save, sample, short_for(Blockade::Call::kWrite));
  EXPECT_FALSE(end.wait());
  blockade_->release();
  expect_only(1);
}

TEST_F(Stalls, RenameLeavesAnUnknownOutcome) {
  const auto writer = make();
  blockade_->block(Blockade::Call::kReplace);
  StagedSample sample(1);
  End end;
  const auto save = writer->start(end.callback()).value();
  begin(*save, sample, short_for(Blockade::Call::kReplace));
  const auto ended = end.wait();
  ASSERT_FALSE(ended);
  EXPECT_NE(std::string(ended.error().what()).find("unknown"), std::string::npos) << ended.error().what();
  StagedSample next(2);  // must not commit before the hung save
  End next_end;
  const auto next_save = writer->start(next_end.callback()).value();
  begin(*next_save, next, short_for(Blockade::Call::kReplace));
  EXPECT_FALSE(next_end.wait());
  blockade_->release();
  expect_only(1);
}

TEST_F(Stalls, StalledClaimEndsTheCall) {
  const auto writer = make();
  blockade_->block(Blockade::Call::kOpenDirectory);
  const StagedSample sample(1);
  End end;
  const auto save = writer->start(end.callback()).value();
  ClaimRequest claim = sample.claim_request(directory_.path());
  claim.deadlines = short_for(Blockade::Call::kOpenDirectory);
  EXPECT_FALSE(save->claim(claim, {}));
  EXPECT_FALSE(end.wait());
  blockade_->release();
  expect_only(0);
}

TEST_F(Stalls, StalledRankFailsAllRanks) {
  for (const std::uint32_t stuck : {0u, 1u}) {
    const auto hanging = make();
    ThreadWriter healthy;
    StagedSample sample(1, 100'000, {stuck, 2, 0});
    StagedSample other(1, 100'000, {1 - stuck, 2, 0});
    End end;
    End other_end;
    const auto save = hanging->start(end.callback()).value();
    const auto other_save = healthy.start(other_end.callback()).value();
    const ClaimRequest claim = (stuck == 0 ? sample : other).claim_request(directory_.path());
    const auto ticket = (stuck == 0 ? save : other_save)->claim(claim, {}).value();
    blockade_->block(Blockade::Call::kWrite);
    begin_with(*save, sample, ticket, short_for(Blockade::Call::kWrite));
    begin_with(*other_save, other, ticket, {kGenerous, kGenerous, kGenerous});
    for (const auto& ended : {end.wait(), other_end.wait()}) {
      ASSERT_FALSE(ended);
      EXPECT_EQ(ended.error().rank(), stuck) << ended.error().what();
      EXPECT_NE(std::string(ended.error().what()).find("has not returned"), std::string::npos) << ended.error().what();
    }
    blockade_->release();
    expect_only(0);
  }
}

TEST_F(Stalls, DoNotKeepTheProgramFromEnding) {
  blockade_->block(Blockade::Call::kWrite);
  auto writer = make();
  StagedSample sample(1);
  End end;
  const auto save = writer->start(end.callback()).value();
  begin(*save, sample, short_for(Blockade::Call::kWrite));
  writer.reset();
  EXPECT_TRUE(end.is_here());
  blockade_->release();
  expect_only(0);
}

TEST_F(Stalls, KeepTheArenaUntilTheEnd) {
  staging::ArenaPool pool(1);
  auto arena = pool.take({}).value();
  arena->note_stuck();
  const auto none = pool.take({});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), ErrorCode::kUnavailable);
  arena.reset();
  EXPECT_TRUE(pool.take({}));
}

}  // namespace
}  // namespace cairn::writer

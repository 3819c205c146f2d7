// When the threads of a save lower their priority.
#include "writer/save_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>
#include <thread>

#include "storage/testing/scratch_directory.h"
#include "writer/testing/staged_sample.h"

namespace cairn::writer {
namespace {

using storage::ScratchDirectory;

// The threads whose priority was lowered.
class StoodBack {
 public:
  std::function<void()> callback() {
    return [this] {
      const std::lock_guard lock(mutex_);
      threads_.insert(std::this_thread::get_id());
    };
  }
  std::size_t count() const {
    const std::lock_guard lock(mutex_);
    return threads_.size();
  }

 private:
  mutable std::mutex mutex_;
  std::set<std::thread::id> threads_;
};

constexpr std::uint64_t kBlock = 4 << 20;

class SaveThreads : public testing::Test {
 protected:
  // Begins a save of two blocks, of which the first is staged.
  void begin(bool trainer_waits) {
    ASSERT_TRUE(sample_.arena()->fit(2 * kBlock));
    sample_.arena()->note_staged(kBlock + kBlock / 2);
    save_ = SaveThread::start(order_, {end_.callback()}, stood_back_.callback()).value();
    std::promise<commit::SaveTicket> claimed;
    save_->claim(sample_.claim_request(scratch_.path()),
                 [&claimed](Result<commit::SaveTicket> ticket) { claimed.set_value(std::move(ticket).value()); });
    SaveRequest request = sample_.request(scratch_.path(), claimed.get_future().get());
    request.trainer_waits = trainer_waits;
    save_->begin(std::move(request));
  }
  // Waits until the first block is written.
  void await_writing() const {
    const auto until = std::chrono::steady_clock::now() + kGenerous;
    while (save_->progress().bytes_written < kBlock) {
      ASSERT_LT(std::chrono::steady_clock::now(), until);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  void stage_and_end() {
    sample_.stage();
    ASSERT_TRUE(save_->staged());
    const auto ended = end_.wait();
    ASSERT_TRUE(ended) << ended.error().what();
    save_->join();
  }

  ScratchDirectory scratch_;
  CommitOrder order_;
  StagedSample sample_{1, kBlock / 2};  // of 4 bytes each
  End end_;
  StoodBack stood_back_;
  std::shared_ptr<SaveThread> save_;
};

TEST_F(SaveThreads, HurryWhileTheTrainerWaits) {
  begin(true);
  await_writing();
  EXPECT_EQ(stood_back_.count(), 0u);
  stage_and_end();
  EXPECT_GE(stood_back_.count(), 2u);  // the save's thread, and the writing threads
}

TEST_F(SaveThreads, StandBackForARunningTrainer) {
  begin(false);
  await_writing();
  EXPECT_GE(stood_back_.count(), 1u);
  stage_and_end();
}

// As prune() removes a directory that it has emptied.
TEST_F(SaveThreads, MakeARemovedDirectoryAgain) {
  const std::filesystem::path directory = scratch_.path() / "step-1";
  int openings = 0;
  const OpenDirectory open = [&](const std::string& name, bool make, mode_t umask) {
    auto opened = open_or_make_directory(name, make, umask);
    if (openings++ == 0) EXPECT_TRUE(std::filesystem::remove(directory));
    return opened;
  };
  save_ = SaveThread::start(order_, {end_.callback()}, stood_back_.callback(), open).value();
  std::promise<Result<commit::SaveTicket>> claimed;
  save_->claim(sample_.claim_request(directory),
               [&claimed](Result<commit::SaveTicket> ticket) { claimed.set_value(std::move(ticket)); });
  const Result<commit::SaveTicket> ticket = claimed.get_future().get();
  ASSERT_TRUE(ticket) << ticket.error().what();
  save_->begin(sample_.request(directory, *ticket));
  stage_and_end();
  EXPECT_EQ(checkpoint_in(directory), 1);
  EXPECT_EQ(openings, 2);
}

TEST_F(SaveThreads, StandBackIfNothingComes) {
  begin(true);
  save_->abandon(Error(ErrorCode::kCancelled, "no bytes today"));
  EXPECT_FALSE(end_.wait());
  save_->join();
  EXPECT_GE(stood_back_.count(), 1u);
}

}  // namespace
}  // namespace cairn::writer

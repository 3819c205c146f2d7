#include <cairn/cairn.h>
#include <cairn/managed_run.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "commit/lease.h"
#include "coordination/testing/as_ranks.h"
#include "run/run_listing.h"
#include "run/testing/broken_store.h"
#include "storage/open_directory.h"
#include "storage/testing/scratch_directory.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;

// A tensor of a rank, filled with a value.
class State {
 public:
  State(std::size_t rank, float value) : elements_(1000, value) {
    const auto tensor = TensorView::contiguous(elements_.data(), DType::kFloat32, {1000});
    EXPECT_TRUE(dict_.add_tensor("of-rank-" + std::to_string(rank), tensor));
  }
  StateDict& dict() { return dict_; }
  float value() const { return elements_.front(); }

 private:
  std::vector<float> elements_;
  StateDict dict_;
};

// Writes beyond 2 KiB of a file fail.
class SmallFiles {
 public:
  SmallFiles() {
    std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit small{2048, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
  }
  ~SmallFiles() { setrlimit(RLIMIT_FSIZE, &before_); }
  SmallFiles(const SmallFiles&) = delete;
  SmallFiles& operator=(const SmallFiles&) = delete;

 private:
  rlimit before_{};
};

class ManagedSaves : public testing::Test {
 protected:
  CheckpointManagerOptions options() {
    CheckpointManagerOptions options;
    options.writer_process = false;
    options.save.save.durability = Durability::kBuffered;
    options.run.schedule.every_steps = 2;
    options.run.warn = [this](const Error& error) {
      const std::lock_guard lock(mutex_);
      warnings_.emplace_back(error.what());
    };
    return options;
  }
  CheckpointManagerOptions options_of(Collectives& ranks, const std::shared_ptr<RunStore>& store) {
    CheckpointManagerOptions mine = options();
    mine.run.collectives = &ranks;
    mine.run.store = store;
    return mine;
  }
  fs::path data_file(int step) const {
    for (const auto& entry : fs::directory_iterator(root_ / ("step-" + std::to_string(step)))) {
      if (entry.path().extension() == ".distcp") return entry.path();
    }
    return {};
  }
  void save_steps(std::uint64_t last, CheckpointManagerOptions options) {
    auto manager = CheckpointManager::open(root_, std::move(options)).value();
    for (std::uint64_t step = 1; step <= last; ++step) {
      State state(0, static_cast<float>(step));
      ASSERT_TRUE(manager.save(step, state.dict(), {{"loss", 1.0 / static_cast<double>(step)}}));
    }
    const Result<void> closed = manager.close();
    ASSERT_TRUE(closed) << closed.error().what();
  }

  std::mutex mutex_;
  std::vector<std::string> warnings_;
  storage::ScratchDirectory scratch_;
  fs::path root_ = scratch_.path() / "run";
};

using Steps = std::vector<std::uint64_t>;

TEST_F(ManagedSaves, KeepTheLastAndResume) {
  CheckpointManagerOptions keeping = options();
  keeping.run.keep = RetentionRule{.last = 2};
  save_steps(9, keeping);
  auto manager = CheckpointManager::open(root_, options()).value();
  EXPECT_EQ(manager.run().steps().value(), (Steps{6, 8}));
  EXPECT_EQ(manager.run().best_step("loss", RetentionRule::Best::Order::kMax).value(), 6U);
  EXPECT_EQ(manager.run().metrics(8).value().at("loss"), 1.0 / 8);
  EXPECT_EQ(manager.run().metrics(7).error().code(), ErrorCode::kNotFound);
  State state(0, 0);
  EXPECT_EQ(manager.restore(state.dict()).value(), 8U);
  EXPECT_EQ(state.value(), 8);
  EXPECT_TRUE(warnings_.empty()) << warnings_.front();
}

// Also without a rule.
TEST_F(ManagedSaves, AnInterruptedRemovalIsFinished) {
  save_steps(4, options());
  fs::rename(root_ / "step-2" / ".metadata", root_ / "step-2" / ".cairn-removed");
  auto manager = CheckpointManager::open(root_, options()).value();
  while (fs::exists(root_ / "step-2")) std::this_thread::yield();
  ASSERT_TRUE(manager.close());
  EXPECT_TRUE(fs::exists(root_ / "step-4" / ".metadata"));
  EXPECT_TRUE(warnings_.empty()) << warnings_.front();
}

TEST_F(ManagedSaves, AnEmptyRootHasNoCheckpoint) {
  auto manager = CheckpointManager::open(root_, options()).value();
  State state(0, 5);
  EXPECT_EQ(manager.restore(state.dict()).value(), std::nullopt);
  EXPECT_EQ(state.value(), 5);
}

TEST_F(ManagedSaves, DamageLeadsToAnOlderOne) {
  save_steps(6, options());
  fs::remove(data_file(6));
  auto manager = CheckpointManager::open(root_, options()).value();
  State state(0, 0);
  EXPECT_EQ(manager.restore(state.dict()).value(), 4U);
  ASSERT_EQ(warnings_.size(), 1U);
  EXPECT_NE(warnings_[0].find("step-6"), std::string::npos) << warnings_[0];
  EXPECT_NE(warnings_[0].find("step-4' takes its place"), std::string::npos) << warnings_[0];
  fs::remove(data_file(2));
  fs::remove(data_file(4));
  EXPECT_EQ(manager.restore(state.dict()).error().code(), ErrorCode::kCorrupt);
}

TEST_F(ManagedSaves, RestoreRaisesOtherErrors) {
  save_steps(4, options());
  auto manager = CheckpointManager::open(root_, options()).value();
  State other(7, 0);
  EXPECT_EQ(manager.restore(other.dict()).error().code(), ErrorCode::kMissingKey);
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(ManagedSaves, AFailedRestoreBeginsAnew) {
  save_steps(6, options());
  auto manager = CheckpointManager::open(root_, options()).value();
  State other(7, 0);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(manager.restore(other.dict()).error().code(), ErrorCode::kMissingKey);
  State state(0, 0);
  EXPECT_EQ(manager.restore(state.dict()).value(), 6U);
  EXPECT_TRUE(manager.run().next_checkpoint(Error(ErrorCode::kCorrupt, "of nothing")).value());
}

TEST_F(ManagedSaves, LostMetadataIsDamage) {
  save_steps(4, options());
  fs::remove(root_ / "step-4" / ".metadata");
  CheckpointManagerOptions hasty = options();
  hasty.run.wait_for_saves = std::chrono::milliseconds(0);
  auto manager = CheckpointManager::open(root_, hasty).value();
  State state(0, 0);
  EXPECT_EQ(manager.restore(state.dict()).value(), 2U);
  ASSERT_EQ(warnings_.size(), 1U);
  EXPECT_NE(warnings_[0].find("step-4' holds data files without .metadata"), std::string::npos) << warnings_[0];
  fs::remove(root_ / "step-2" / ".metadata");
  EXPECT_EQ(manager.restore(state.dict()).error().code(), ErrorCode::kCorrupt);
  fs::rename(root_ / "step-2" / data_file(2).filename(), root_ / "a");
  fs::create_directory(root_ / "step-4" / (".cairn-" + std::string(32, '0')));  // a save that was interrupted
  EXPECT_EQ(manager.restore(state.dict()).value(), std::nullopt);
}

TEST_F(ManagedSaves, ANamelessOneIsPassedOver) {
  save_steps(4, options());
  fs::rename(root_ / "step-4", root_ / "last.ckpt");
  auto manager = CheckpointManager::open(root_, options()).value();
  State state(0, 0);
  EXPECT_EQ(manager.restore(state.dict()).value(), 2U);
  ASSERT_EQ(warnings_.size(), 1U);
  EXPECT_NE(warnings_[0].find("last.ckpt' has no step"), std::string::npos) << warnings_[0];
  fs::rename(root_ / "step-2", root_ / "first");
  const auto restored = manager.restore(state.dict());
  ASSERT_FALSE(restored);
  EXPECT_EQ(restored.error().code(), ErrorCode::kCorrupt);
  EXPECT_NE(std::string(restored.error().what()).find("rename the directory"), std::string::npos);
}

TEST_F(ManagedSaves, ARootIsNoCheckpointOfAStep) {
  root_ = scratch_.path() / "run-7";
  State state(0, 5);
  ASSERT_TRUE(save(root_, state.dict()));
  auto manager = CheckpointManager::open(root_, options()).value();
  const auto restored = manager.restore(state.dict());
  ASSERT_FALSE(restored);
  EXPECT_NE(std::string(restored.error().what()).find("is itself a checkpoint"), std::string::npos);
}

TEST_F(ManagedSaves, ALinkStandsForItsTarget) {
  save_steps(2, options());
  fs::create_directory_symlink("step-2", root_ / "latest");
  auto manager = CheckpointManager::open(root_, options()).value();
  State state(0, 0);
  EXPECT_EQ(manager.restore(state.dict()).value(), 2U);
  fs::rename(root_ / "step-2", scratch_.path() / "step-2");
  fs::remove(root_ / "latest");
  fs::create_directory_symlink(scratch_.path() / "step-2", root_ / "latest");
  EXPECT_EQ(manager.restore(state.dict()).value(), 2U);
  EXPECT_TRUE(warnings_.empty()) << warnings_.front();
}

TEST_F(ManagedSaves, AWaitWithoutAnEndIsAWarning) {
  save_steps(2, options());
  fs::create_directory(root_ / "step-4");
  const auto storage = storage::open_directory(root_ / "step-4").value();
  const auto lease = commit::Lease::take_with_folder(*storage, {.save_id = {1, 2}, .job_id = {3, 4}});
  ASSERT_TRUE(lease) << lease.error().what();
  CheckpointManagerOptions hasty = options();
  hasty.run.wait_for_saves = std::chrono::milliseconds(100);
  auto manager = CheckpointManager::open(root_, hasty).value();
  State state(0, 0);
  EXPECT_EQ(manager.restore(state.dict()).value(), 2U);
  ASSERT_EQ(warnings_.size(), 1U);
  EXPECT_NE(warnings_[0].find("has not ended within 100 ms"), std::string::npos) << warnings_[0];
}

// A run that has gone back comes to the step of a pinned checkpoint.
TEST_F(ManagedSaves, APinnedOneIsNotReplaced) {
  save_steps(4, options());
  ASSERT_TRUE(pin(root_ / "step-4", "of the paper"));
  for (const bool writer_process : {false, true}) {
    CheckpointManagerOptions resumed = options();
    resumed.writer_process = writer_process;
    auto manager = CheckpointManager::open(root_, resumed).value();
    State state(0, 7);
    const auto saved = manager.save(4, state.dict());
    ASSERT_TRUE(saved && *saved);
    const Result<AsyncSaveReport>& written = (*saved)->write.get();
    ASSERT_FALSE(written);
    EXPECT_NE(std::string(written.error().what()).find("pinned: of the paper"), std::string::npos);
    EXPECT_EQ(manager.restore(state.dict()).value(), 4U);
    EXPECT_EQ(state.value(), 4);
    ASSERT_TRUE(manager.save(6, state.dict())) << "the training goes on";
    EXPECT_TRUE(manager.close());
    fs::remove_all(root_ / "step-6");
  }
}

TEST_F(ManagedSaves, AFailureIsOfOneSaveAlone) {
  auto manager = CheckpointManager::open(root_, options()).value();
  State state(0, 1);
  {
    const SmallFiles small_files;
    ASSERT_TRUE(manager.save(2, state.dict()));
    ASSERT_FALSE(manager.wait());
  }
  ASSERT_TRUE(manager.save(4, state.dict()));
  const Result<void> waited = manager.wait();
  EXPECT_TRUE(waited) << waited.error().what();
  EXPECT_EQ(manager.run().steps().value(), Steps{4});
  EXPECT_EQ(manager.run().report().failed, 1U);
  EXPECT_TRUE(manager.close());
}

TEST_F(ManagedSaves, AStopIsTriedAfterFailures) {
  CheckpointManagerOptions strict = options();
  strict.run.failures_in_a_row = 1;
  auto manager = CheckpointManager::open(root_, strict).value();
  State state(0, 1);
  {
    const SmallFiles small_files;
    ASSERT_TRUE(manager.save(2, state.dict()));
    ASSERT_FALSE(manager.wait());
  }
  ASSERT_TRUE(manager.run().request_stop());
  const auto saved = manager.save(3, state.dict());
  ASSERT_TRUE(saved && *saved);
  const Result<AsyncSaveReport>& written = (*saved)->write.get();
  EXPECT_TRUE(written) << written.error().what();
  EXPECT_TRUE(manager.preempted());
  EXPECT_EQ(manager.run().steps().value(), Steps{3});
}

TEST_F(ManagedSaves, ARootIsFoundAfterChdir) {
  const fs::path before = fs::current_path();
  fs::current_path(scratch_.path());
  auto manager = CheckpointManager::open("run", options()).value();
  fs::current_path(before);
  State state(0, 1);
  ASSERT_TRUE(manager.save(2, state.dict()));
  ASSERT_TRUE(manager.close());
  EXPECT_TRUE(fs::exists(root_ / "step-2" / ".metadata"));
}

TEST_F(ManagedSaves, ARootHasOneManager) {
  auto manager = CheckpointManager::open(root_, options()).value();
  EXPECT_EQ(CheckpointManager::open(root_, options()).error().code(), ErrorCode::kUnavailable);
  ASSERT_TRUE(manager.close());
  EXPECT_TRUE(CheckpointManager::open(root_, options()));
}

TEST_F(ManagedSaves, ASignalStopsWithACheckpoint) {
  CheckpointManagerOptions stopping = options();
  stopping.run.schedule = {};
  stopping.run.stop_signals = {SIGUSR2};
  auto manager = CheckpointManager::open(root_, stopping).value();
  State state(0, 1);
  EXPECT_EQ(manager.save(1, state.dict()).value(), std::nullopt);
  raise(SIGUSR2);
  std::uint64_t step = 2;
  for (; !manager.preempted(); ++step) ASSERT_TRUE(manager.save(step, state.dict()));
  EXPECT_EQ(manager.run().steps().value(), Steps{step - 1});
}

TEST_F(ManagedSaves, AForkedChildLeavesTheRun) {
  auto manager = std::make_unique<CheckpointManager>(CheckpointManager::open(root_, options()).value());
  State state(0, 1);
  ASSERT_TRUE(manager->save(2, state.dict()));
  ASSERT_TRUE(manager->wait());
  const pid_t child = fork();
  if (child == 0) {
    manager.reset();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(fs::exists(root_ / ".cairn-manager")) << "the lease is the parent's";
  EXPECT_TRUE(manager->save(4, state.dict()));
}

TEST_F(ManagedSaves, RanksStopAtOneStep) {
  const auto store = make_local_store();
  std::vector<std::uint64_t> stopped(3);
  as_ranks(3, [&](std::size_t rank, Collectives& ranks) {
    auto manager = CheckpointManager::open(root_, options_of(ranks, store)).value();
    for (std::uint64_t step = 1; !manager.preempted(); ++step) {
      State state(rank, static_cast<float>(step));
      if (rank == 1 && step == 5) ASSERT_TRUE(manager.run().request_stop());
      const auto saved = manager.save(step, state.dict());
      ASSERT_TRUE(saved) << saved.error().what();
      stopped[rank] = step;
    }
  });
  EXPECT_EQ(stopped, (std::vector<std::uint64_t>(3, stopped[0])));
  EXPECT_GE(stopped[0], 5U);
  std::atomic<int> restored{0};
  as_ranks(3, [&](std::size_t rank, Collectives& ranks) {
    auto manager = CheckpointManager::open(root_, options_of(ranks, store)).value();
    State state(rank, 0);
    if (manager.restore(state.dict()).value() == stopped[0] && state.value() == static_cast<float>(stopped[0])) {
      ++restored;
    }
  });
  EXPECT_EQ(restored, 3);
}

// The store of a process group, with a view of what rank 0 has agreed to.
class WatchedStore : public RunStore {
 public:
  Result<void> set(const std::string& key, const std::string& value) override {
    const Result<void> done = store_->set(key, value);
    if (key.ends_with("/agreed/0")) has_agreed_ = true;
    if (key.find("/agreed/") != std::string::npos) ++agreements_;
    return done;
  }
  Result<std::optional<std::vector<std::string>>> get(const std::vector<std::string>& keys) override {
    return store_->get(keys);
  }
  Result<void> remove(const std::string& key) override { return store_->remove(key); }
  int agreements() const { return agreements_; }
  void wait_for_agreement() const {
    while (!has_agreed_) std::this_thread::yield();
  }

 private:
  std::shared_ptr<RunStore> store_ = make_local_store();
  std::atomic<bool> has_agreed_{false};
  std::atomic<int> agreements_{0};
};

// A signal arrives while the run goes back to an earlier step: the stop does not wait for the step of the signal.
TEST_F(ManagedSaves, RanksThatWentBackStop) {
  const auto store = std::make_shared<WatchedStore>();
  as_ranks(2, [&](std::size_t rank, Collectives& ranks) {
    auto manager = CheckpointManager::open(root_, options_of(ranks, store)).value();
    State state(rank, 1);
    for (const std::uint64_t step : {4U, 9U}) ASSERT_TRUE(manager.save(step, state.dict()));
    if (rank == 1) ASSERT_TRUE(manager.run().request_stop());
    store->wait_for_agreement();
    EXPECT_EQ(manager.restore(state.dict()).value(), 4U);
    ASSERT_TRUE(manager.save(5, state.dict()));
    EXPECT_TRUE(manager.preempted());
    EXPECT_EQ(manager.run().steps().value(), (Steps{4, 5}));
  });
}

// Between the request of a save and its step, the clock of rank 0 says again and again that a save is due.
TEST_F(ManagedSaves, ATimedSaveIsRequestedOnce) {
  const auto store = std::make_shared<WatchedStore>();
  std::atomic<int> saves{0};
  as_ranks(2, [&](std::size_t rank, Collectives& ranks) {
    CheckpointManagerOptions timed = options_of(ranks, store);
    timed.run.schedule.every_steps.reset();
    timed.run.schedule.every = std::chrono::milliseconds(150);
    auto manager = CheckpointManager::open(root_, timed).value();
    State state(rank, 1);
    for (std::uint64_t step = 1, saved = 0; saved < 3; ++step) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      const auto made = manager.save(step, state.dict());
      ASSERT_TRUE(made) << made.error().what();
      if (*made) ++saved;
      if (*made && rank == 0) ++saves;
    }
    ASSERT_TRUE(manager.wait());
  });
  EXPECT_EQ(saves, 3);
  EXPECT_LE(store->agreements(), 4) << "one for each save, and one for the end of the ranks";
}

// Only rank 0 looks at the lease.
TEST_F(ManagedSaves, ALostLeaseFailsAllRanks) {
  const auto store = make_local_store();
  as_ranks(2, [&](std::size_t rank, Collectives& ranks) {
    auto manager = CheckpointManager::open(root_, options_of(ranks, store)).value();
    State state(rank, 1);
    ASSERT_TRUE(manager.save(2, state.dict()));
    ASSERT_TRUE(manager.wait());
    if (rank == 0) fs::remove(root_ / ".cairn-manager");
    const auto saved = manager.save(4, state.dict());
    ASSERT_FALSE(saved);
    EXPECT_NE(std::string(saved.error().what()).find("manages the directory no longer"), std::string::npos);
  });
  EXPECT_FALSE(fs::exists(root_ / "step-4"));
}

// The ranks meet in a save that all of them force.
TEST_F(ManagedSaves, AForcedSavePassesOnAStop) {
  const auto store = std::make_shared<run::BrokenStore>();
  std::atomic<int> failed{0};
  as_ranks(2, [&](std::size_t rank, Collectives& ranks) {
    CheckpointManagerOptions mine = options_of(ranks, store);
    mine.run.schedule.every_steps.reset();
    mine.run.agreement_deadline = std::chrono::milliseconds(50);
    mine.run.warn = [&failed](const Error&) { ++failed; };
    auto manager = CheckpointManager::open(root_, mine).value();
    while (failed < 2) std::this_thread::yield();
    State state(rank, 1);
    if (rank == 1) {
      ASSERT_TRUE(manager.run().request_stop());
      EXPECT_TRUE(manager.run().is_stop_requested());
      std::this_thread::sleep_for(std::chrono::seconds(1));  // the least deadline is shorter
      const auto unanswered = manager.save(1, state.dict());
      ASSERT_FALSE(unanswered);
      EXPECT_EQ(unanswered.error().code(), ErrorCode::kUnavailable);
    } else {
      EXPECT_EQ(manager.save(1, state.dict()).value(), std::nullopt);
    }
    const auto saved = manager.save(2, state.dict(), {}, true);
    ASSERT_TRUE(saved && *saved) << saved.error().what();
    EXPECT_TRUE((*saved)->write.get());
    EXPECT_TRUE(manager.preempted());
    EXPECT_TRUE(manager.run().is_stopping());
  });
  EXPECT_TRUE(fs::exists(root_ / "step-2" / ".metadata"));
}

// A save that is made in any case is the save of the stop.
TEST_F(ManagedSaves, ASavePassesOnAStop) {
  const auto store = std::make_shared<run::BrokenStore>();
  as_ranks(2, [&](std::size_t rank, Collectives& ranks) {
    CheckpointManagerOptions mine = options_of(ranks, store);
    mine.run.agreement_deadline = std::chrono::milliseconds(50);
    auto manager = CheckpointManager::open(root_, mine).value();
    State state(rank, 1);
    if (rank == 1) ASSERT_TRUE(manager.run().request_stop());
    std::this_thread::sleep_for(std::chrono::seconds(1));  // the least deadline is shorter
    EXPECT_EQ(manager.save(1, state.dict()).value(), std::nullopt) << "the next save passes on the stop";
    const auto saved = manager.save(2, state.dict());
    ASSERT_TRUE(saved && *saved) << saved.error().what();
    EXPECT_TRUE((*saved)->write.get());
    EXPECT_TRUE(manager.preempted());
    EXPECT_FALSE(manager.run().is_stop_requested());
  });
}

TEST_F(ManagedSaves, DifferentStepsAreNoCheckpoint) {
  const auto store = make_local_store();
  as_ranks(2, [&](std::size_t rank, Collectives& ranks) {
    auto manager = CheckpointManager::open(root_, options_of(ranks, store)).value();
    State state(rank, 1);
    const auto saved = manager.save(2 + 2 * rank, state.dict());
    ASSERT_FALSE(saved);
    EXPECT_NE(std::string(saved.error().what()).find("the steps 2 to 4"), std::string::npos) << saved.error().what();
    EXPECT_TRUE(manager.save(6, state.dict()).value());
  });
  EXPECT_FALSE(fs::exists(root_ / "step-2"));
}

TEST_F(ManagedSaves, AnExceptionIsAFailure) {
  try {
    auto manager = CheckpointManager::open(root_, options()).value();
    State state(0, 1);
    ASSERT_TRUE(manager.save(2, state.dict()));
    throw std::runtime_error("of the training");
  } catch (const std::runtime_error&) {
  }
  for (const std::uint64_t failures : {1U, 1U}) {
    auto manager = CheckpointManager::open(root_, options()).value();
    State state(0, 0);
    EXPECT_EQ(manager.restore(state.dict()).value(), 2U);
    EXPECT_EQ(manager.run().report().failures, failures) << "later restarts know it from the notes alone";
    ASSERT_TRUE(manager.save(2, state.dict()));
    ASSERT_TRUE(manager.close());
  }
}

TEST_F(ManagedSaves, ARemovedOneIsNotTheBest) {
  save_steps(4, options());
  const std::vector<run::ListedStep> listed = {{6, root_ / "step-6"}, {4, root_ / "step-4"}};
  EXPECT_EQ(run::best_of(listed, "loss", RetentionRule::Best::Order::kMin).value(), 4U);
}

TEST_F(ManagedSaves, RanksWithoutAStoreRefuseAStop) {
  as_ranks(2, [&](std::size_t, Collectives& ranks) {
    CheckpointManagerOptions timed = options_of(ranks, nullptr);
    timed.run.schedule.every = std::chrono::seconds(1);
    EXPECT_EQ(CheckpointManager::open(root_, timed).error().code(), ErrorCode::kInvalidArgument);
    auto manager = CheckpointManager::open(root_, options_of(ranks, nullptr)).value();
    EXPECT_EQ(manager.run().request_stop().error().code(), ErrorCode::kUnsupported);
  });
}

TEST_F(ManagedSaves, FailuresInARowAreRaised) {
  CheckpointManagerOptions strict = options();
  strict.run.failures_in_a_row = 2;
  const SmallFiles small_files;
  auto manager = CheckpointManager::open(root_, strict).value();
  State state(0, 1);
  for (const std::uint64_t step : {2U, 4U}) {
    const auto saved = manager.save(step, state.dict());
    ASSERT_TRUE(saved && *saved);
    EXPECT_FALSE((*saved)->write.get());
  }
  const auto forced = manager.save(5, state.dict(), {}, true);
  ASSERT_TRUE(forced && *forced) << "a forced save is tried once more";
  EXPECT_FALSE((*forced)->write.get());
  const auto third = manager.save(6, state.dict(), {}, true);
  ASSERT_FALSE(third);
  EXPECT_NE(std::string(third.error().what()).find("3 saves in a row have failed"), std::string::npos);
  EXPECT_TRUE(manager.save(8, state.dict())) << "the count begins anew";
  EXPECT_FALSE(manager.close());
  EXPECT_EQ(warnings_.size(), 4U);
}

}  // namespace
}  // namespace cairn

// Synchronous saves whose storage hangs: the saves fail on every rank within the deadlines, never commit later, and do
// not read the caller's memory after they have returned.
#include <cairn/cairn.h>
#include <cairn/collectives.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "save/save_calls.h"
#include "save/testing/sample_state.h"
#include "storage/posix/posix_storage.h"
#include "storage/testing/blocking_storage.h"
#include "storage/testing/scratch_directory.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using storage::Blockade;
using Call = storage::Blockade::Call;
using storage::short_for;

constexpr std::chrono::minutes kGenerous{2};

// A tensor whose pages can be made inaccessible: a read then kills the test with a signal.
class Pages {
 public:
  explicit Pages(std::size_t bytes)
      : bytes_(bytes), data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
  ~Pages() { munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  void take_away() { ASSERT_EQ(mprotect(data_, bytes_, PROT_NONE), 0); }
  StateDict state() const {
    StateDict state;
    const auto count = static_cast<std::int64_t>(bytes_ / sizeof(float));
    EXPECT_TRUE(state.add_tensor("large", TensorView::contiguous(data_, DType::kFloat32, {count})));
    return state;
  }

 private:
  std::size_t bytes_;
  void* data_;
};

class SaveStalls : public testing::Test {
 protected:
  ~SaveStalls() override {
    blockade_->release();
    await_end();
  }

  checkpointer::SaveDirectory directory() const {
    const auto open = [path = directory_.path(), blockade = blockade_]() -> Result<std::unique_ptr<storage::Storage>> {
      blockade->pass(Call::kOpenDirectory);
      CAIRN_TRY_ASSIGN(auto opened, storage::PosixStorage::make_directory(path));
      return std::unique_ptr<storage::Storage>(std::make_unique<storage::BlockingStorage>(std::move(opened), blockade));
    };
    return {"here", open};
  }
  Result<SaveReport> save_state(const StateDict& state, SaveOptions options) const {
    options.checkpoint_id = directory_.path().string();
    return checkpointer::save_into(directory(), state, options);
  }
  Result<SaveReport> save_step(int step, const SaveOptions& options = {}) const {
    return save_state(SampleState(step).dict(), options);  // the state is destroyed on return
  }
  int loaded_step() const {
    SampleState target(0);
    const auto report = load(directory_.path(), target.dict());
    return report ? target.step() : 0;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& file : fs::directory_iterator(directory_.path())) names.push_back(file.path().filename().string());
    return names;
  }
  // Waits until the threads of all saves that were given up have ended. A thread destroys its storage last.
  void await_end() const {
    const auto until = std::chrono::steady_clock::now() + kGenerous;
    while (blockade_.use_count() > 1) {
      ASSERT_LT(std::chrono::steady_clock::now(), until);
      std::this_thread::yield();
    }
  }

  storage::ScratchDirectory directory_;
  std::shared_ptr<Blockade> blockade_ = std::make_shared<Blockade>();  // shared with the storages
};

void expect_stall(const Error& error) {
  EXPECT_EQ(error.code(), ErrorCode::kUnavailable) << error.what();
  const std::string text = error.what();
  EXPECT_NE(text.find("has not returned"), std::string::npos) << text;
  EXPECT_NE(text.find("500 ms"), std::string::npos) << text;
  EXPECT_NE(text.find("(while "), std::string::npos) << text;
}

class CommittedSaveStalls : public SaveStalls, public testing::WithParamInterface<Call> {};
INSTANTIATE_TEST_SUITE_P(ByCall, CommittedSaveStalls, testing::Values(Call::kRemove, Call::kUnlock),
                         [](const auto& tested) { return "Call" + std::to_string(static_cast<int>(tested.param)); });

class SaveCallStalls : public SaveStalls, public testing::WithParamInterface<Call> {};

TEST_P(SaveCallStalls, FailTheSaveAndNeverCommit) {
  ASSERT_TRUE(save_step(1));
  blockade_->block(GetParam());
  const auto report = save_step(2, {.deadlines = short_for(GetParam())});
  ASSERT_FALSE(report);
  expect_stall(report.error());
  blockade_->release();
  await_end();
  EXPECT_EQ(loaded_step(), 1);
  EXPECT_EQ(names().size(), 2u);
  ASSERT_TRUE(save_step(3));
  EXPECT_EQ(loaded_step(), 3);
  EXPECT_EQ(names().size(), 2u);
}

INSTANTIATE_TEST_SUITE_P(ByCall, SaveCallStalls,
                         testing::Values(Call::kOpenDirectory, Call::kLock, Call::kMakeFolder, Call::kList, Call::kOpen,
                                         Call::kCreate, Call::kWrite, Call::kFinish, Call::kPublish, Call::kSync),
                         [](const auto& tested) { return "Call" + std::to_string(static_cast<int>(tested.param)); });

TEST_F(SaveStalls, RenameLeavesTheOutcomeUnknown) {
  ASSERT_TRUE(save_step(1));
  blockade_->block(Call::kReplace);
  const auto report = save_step(2, {.deadlines = short_for(Call::kReplace)});
  ASSERT_FALSE(report);
  expect_stall(report.error());
  EXPECT_NE(std::string(report.error().what()).find("unknown"), std::string::npos) << report.error().what();
  EXPECT_EQ(loaded_step(), 1);
  blockade_->release();
  await_end();
  EXPECT_EQ(loaded_step(), 2);
}

// A second save takes the lock during the hang, as if a file server had granted the lock twice.
TEST_F(SaveStalls, LateRenameRemovesNothing) {
  ASSERT_TRUE(save_step(1));
  blockade_->block(Call::kReplace);
  ASSERT_FALSE(save_step(2, {.deadlines = short_for(Call::kReplace)}));
  fs::remove(directory_.path() / storage::kLockName);
  ASSERT_TRUE(save(directory_.path(), SampleState(3).dict()));
  for (const auto& file : fs::directory_iterator(directory_.path())) {
    fs::last_write_time(file.path(), fs::file_time_type::clock::now() - std::chrono::hours(1));
  }
  const std::vector<std::string> before = names();
  auto storage = storage::PosixStorage::make_directory(directory_.path()).value();
  const auto lock = storage->lock().value();
  blockade_->release();
  await_end();
  for (const std::string& name : before) EXPECT_TRUE(fs::exists(directory_.path() / name)) << name;
  EXPECT_TRUE(lock->is_held());
}

TEST_P(CommittedSaveStalls, AreReportedAsAWarning) {
  ASSERT_TRUE(save_step(1));
  blockade_->block(GetParam());
  const auto report = save_step(2, {.deadlines = short_for(GetParam())});
  ASSERT_TRUE(report) << report.error().what();
  ASSERT_EQ(report->warnings.size(), 1u);
  EXPECT_NE(report->warnings[0].find("not cleaned up"), std::string::npos) << report->warnings[0];
  EXPECT_EQ(loaded_step(), 2);
  blockade_->release();
  await_end();
  EXPECT_EQ(loaded_step(), 2);
  EXPECT_EQ(names().size(), 2u);
}

TEST_F(SaveStalls, ReadNoStateAfterTheCall) {
  for (const Call call : {Call::kCreate, Call::kWrite, Call::kFinish}) {
    for (const std::size_t threads : {1u, 4u}) {
      Pages pages(std::size_t{40} << 20);
      blockade_->block(call);
      const auto report = save_state(pages.state(), {.deadlines = short_for(call), .thread_count = threads});
      ASSERT_FALSE(report);
      expect_stall(report.error());
      pages.take_away();
      blockade_->release();
      await_end();
      EXPECT_TRUE(names().empty());
    }
  }
}

TEST_F(SaveStalls, EndSoonAfterAnInterruption) {
  ASSERT_TRUE(save_step(1));
  blockade_->block(Call::kWrite);
  SaveOptions options;
  options.deadlines = {kGenerous, kGenerous, kGenerous};
  options.interrupted = [] { return true; };
  const auto report = save_step(2, options);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), ErrorCode::kCancelled);
  blockade_->release();
  await_end();
  EXPECT_EQ(loaded_step(), 1);
}

TEST_F(SaveStalls, AreLeftByACallersException) {
  blockade_->block(Call::kWrite);
  SaveOptions options;
  options.interrupted = []() -> bool { throw std::runtime_error("mine"); };
  EXPECT_THROW((void)save_step(1, options), std::runtime_error);
  blockade_->release();
  await_end();
  EXPECT_TRUE(names().empty());
}

// A sync of many bytes may last longer than the grace time of the remaining calls.
TEST_F(SaveStalls, ExcludeASlowInterruptedSync) {
  constexpr std::chrono::milliseconds kSync{2500};
  blockade_->block(Call::kFinish);
  std::optional<std::chrono::steady_clock::time_point> since;
  SaveOptions options;
  options.interrupted = [&] {
    if (!blockade_->is_hanging()) return since.has_value();
    if (!since) since = std::chrono::steady_clock::now();
    if (std::chrono::steady_clock::now() - *since > kSync) blockade_->release();
    return true;
  };
  const auto report = save_step(1, options);
  EXPECT_TRUE(since);
  if (!report) {
    EXPECT_EQ(std::string(report.error().what()).find("has not returned"), std::string::npos) << report.error().what();
    EXPECT_TRUE(names().empty());  // withdrawn before the return of the save
  }
}

TEST_F(SaveStalls, AreLeftByALaterException) {
  blockade_->block(Call::kFinish);
  SaveOptions options;
  options.interrupted = [asked = 0]() mutable -> bool {
    if (++asked > 2) throw std::runtime_error("mine");
    return asked == 2;
  };
  EXPECT_THROW((void)save_step(1, options), std::runtime_error);
  blockade_->release();
  await_end();
  EXPECT_TRUE(names().empty());
}

TEST_F(SaveStalls, CommitStallsOutrankExceptions) {
  ASSERT_TRUE(save_step(1));
  SaveOptions options;
  options.interrupted = [this]() -> bool {
    if (blockade_->is_hanging()) throw std::runtime_error("mine");
    return false;
  };
  blockade_->block(Call::kRemove);
  const auto report = save_step(2, options);
  ASSERT_TRUE(report) << report.error().what();
  ASSERT_EQ(report->warnings.size(), 1u);
  EXPECT_NE(report->warnings[0].find("not cleaned up"), std::string::npos) << report->warnings[0];
  EXPECT_EQ(loaded_step(), 2);
  blockade_->release();
  await_end();
  blockade_->block(Call::kReplace);
  const auto unknown = save_step(3, options);
  ASSERT_FALSE(unknown);
  EXPECT_NE(std::string(unknown.error().what()).find("unknown"), std::string::npos) << unknown.error().what();
  blockade_->release();
  await_end();
  EXPECT_EQ(loaded_step(), 3);
}

// Two ranks save step 2 together; the storage of rank `stuck` hangs, and only rank `stuck` has the options `of_stuck`.
class SaveStallsOfRanks : public SaveStalls {
 protected:
  // Returns the errors, by rank.
  std::vector<std::optional<Error>> save_by_two(std::size_t stuck, const SaveOptions& of_stuck) const {
    auto group = make_local_group(2, std::chrono::minutes(5));
    std::vector<std::optional<Error>> errors(2);
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        SampleState state(2);
        SaveOptions options = rank == stuck ? of_stuck : SaveOptions{.deadlines = {kGenerous, kGenerous, kGenerous}};
        options.collectives = group[rank].get();
        const auto report =
            rank == stuck ? save_state(state.dict(), options) : cairn::save(directory_.path(), state.dict(), options);
        if (!report) errors[rank] = report.error();
      });
    }
    for (std::thread& thread : threads) thread.join();
    return errors;
  }
  // Options whose `interrupted` throws once a call hangs.
  SaveOptions throwing() const {
    SaveOptions options;
    options.interrupted = [this]() -> bool {
      if (blockade_->is_hanging()) throw std::runtime_error("mine");
      return false;
    };
    return options;
  }
};

TEST_F(SaveStallsOfRanks, FailOnEveryRank) {
  ASSERT_TRUE(save_step(1));
  for (const std::size_t stuck : {0u, 1u}) {
    for (const Call call : {Call::kOpenDirectory, Call::kWrite, Call::kFinish, Call::kPublish}) {
      blockade_->block(call);
      const auto errors = save_by_two(stuck, {.deadlines = short_for(call)});
      for (const auto& error : errors) {
        ASSERT_TRUE(error);
        expect_stall(*error);
        EXPECT_EQ(error->rank(), static_cast<std::int64_t>(stuck));
      }
      blockade_->release();
      await_end();
      EXPECT_EQ(loaded_step(), 1);
      EXPECT_EQ(names().size(), 2u);
    }
  }
}

TEST_F(SaveStallsOfRanks, KeepBothCheckpointsInTheCommit) {
  ASSERT_TRUE(save_step(1));
  blockade_->block(Call::kReplace);
  const auto errors = save_by_two(0, {.deadlines = short_for(Call::kReplace)});
  for (const auto& error : errors) {
    ASSERT_TRUE(error);
    expect_stall(*error);
    EXPECT_NE(std::string(error->what()).find("unknown"), std::string::npos) << error->what();
  }
  EXPECT_EQ(loaded_step(), 1);
  blockade_->release();
  await_end();
  EXPECT_EQ(loaded_step(), 2);
}

// The rename may still happen, so no rank may withdraw files that the new metadata names.
TEST_F(SaveStallsOfRanks, KeepTheFilesDespiteException) {
  ASSERT_TRUE(save_step(1));
  blockade_->block(Call::kReplace);
  for (const auto& error : save_by_two(0, throwing())) EXPECT_TRUE(error);
  blockade_->release();
  await_end();
  EXPECT_EQ(loaded_step(), 2);
}

// The save is committed before a rank removes its private folder.
TEST_F(SaveStallsOfRanks, CleaningStallsAreNoFailure) {
  ASSERT_TRUE(save_step(1));
  blockade_->block(Call::kRemove);
  for (const auto& error : save_by_two(0, throwing())) EXPECT_FALSE(error) << error->what();
  EXPECT_EQ(loaded_step(), 2);
  blockade_->release();
  await_end();
  EXPECT_EQ(loaded_step(), 2);
}

class SaveStepStalls : public SaveStalls {};

TEST_F(SaveStepStalls, FailTheShareOfARank) {
  const auto claim = checkpointer::claim_in(directory(), {});
  ASSERT_TRUE(claim);
  std::uint32_t rank = 0;
  for (const Call call : {Call::kWrite, Call::kFinish, Call::kPublish}) {
    blockade_->block(call);
    const auto share = checkpointer::write_share_in(directory(), claim->ticket(), rank++, SampleState(1).dict(),
                                                    {.deadlines = short_for(call)});
    ASSERT_FALSE(share);
    expect_stall(share.error());
    EXPECT_NE(std::string(share.error().what()).find("'here'"), std::string::npos) << share.error().what();
    blockade_->release();
  }
}

TEST_F(SaveStepStalls, ClaimStallsEndTheCall) {
  for (const Call call : {Call::kOpenDirectory, Call::kMakeFolder}) {
    blockade_->block(call);
    const auto claim = checkpointer::claim_in(directory(), {.deadlines = short_for(call)});
    ASSERT_FALSE(claim);
    expect_stall(claim.error());
    blockade_->release();
  }
  await_end();
  EXPECT_TRUE(names().empty());
}

TEST_F(SaveStepStalls, WithdrawalStallEndsDestructor) {
  {
    const auto claim = checkpointer::claim_in(directory(), {.deadlines = {kGenerous, kGenerous, kGenerous}});
    ASSERT_TRUE(claim);
    blockade_->block(Call::kList);
  }
  EXPECT_TRUE(blockade_->is_hanging());
  blockade_->release();
  await_end();
  EXPECT_TRUE(names().empty());
}

// In the child the claim's thread does not exist, and a lock that the thread held at the fork stays locked.
TEST_F(SaveStepStalls, ForkedChildOnlyDropsTheClaim) {
  std::optional<SaveClaim> claim;
  {
    auto made = checkpointer::claim_in(directory(), {});
    ASSERT_TRUE(made);
    claim.emplace(std::move(*made));
  }
  const pid_t child = fork();
  ASSERT_NE(child, -1);
  if (child == 0) {
    alarm(60);
    const auto report = claim->commit("", {});
    claim->withdraw();
    claim.reset();
    _exit(report ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(names().size(), 1u);
  claim.reset();
  EXPECT_TRUE(names().empty());
}

TEST_F(SaveStepStalls, WithdrawalStallEndsTheCall) {
  auto claim = checkpointer::claim_in(directory(), {.deadlines = short_for(Call::kList)});
  ASSERT_TRUE(claim);
  blockade_->block(Call::kList);
  claim->withdraw();
  EXPECT_EQ(names().size(), 1u);
  blockade_->release();
  await_end();
  EXPECT_TRUE(names().empty());
}

}  // namespace
}  // namespace cairn

#include "run/step_agreement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <random>
#include <set>
#include <thread>

#include "run/testing/broken_store.h"

namespace cairn::run {
namespace {

using std::chrono::milliseconds;

AgreementGroup group_of(const std::shared_ptr<RunStore>& store, std::size_t rank, std::size_t size) {
  return {.store = store, .rank = rank, .size = size, .prefix = "test/", .deadline = milliseconds(60'000)};
}

// Steps of a training whose ranks may be at most `lead_max` steps apart, as collectives in the steps keep them.
class Training {
 public:
  Training(std::size_t ranks, std::uint64_t lead_max) : ended_(ranks), lead_max_(lead_max) {}

  void end_step(std::size_t rank, std::uint64_t step) {
    ended_[rank] = step;
    const auto slowest = [this] { return std::min_element(ended_.begin(), ended_.end())->load(); };
    while (slowest() + lead_max_ < step) std::this_thread::yield();
  }

 private:
  std::vector<std::atomic<std::uint64_t>> ended_;
  const std::uint64_t lead_max_;
};

TEST(StepAgreement, OneRankStopsAtItsNextStep) {
  const auto agreement = StepAgreement::start({}).value();
  EXPECT_EQ(agreement->cross(1, {}).value(), 0U);
  agreement->request(kStopRequest);
  EXPECT_EQ(agreement->cross(2, {}).value(), kStopRequest);
  EXPECT_EQ(agreement->cross(3, {}).value(), 0U);
}

// Ranks that run freely request stops at random; all must take every request at one step.
TEST(StepAgreement, AllRanksStopAtOneStep) {
  constexpr std::size_t kRanks = 3;
  std::mt19937 dice(7);
  for (unsigned series = 0; series < 20; ++series) {
    const auto store = make_local_store();
    Training training(kRanks, series % 3);
    const std::uint64_t request_at = 1 + dice() % 50;
    const std::size_t requests = 1 + dice() % kRanks;
    std::vector<std::uint64_t> stopped(kRanks);
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        const auto agreement = StepAgreement::start(group_of(store, rank, kRanks)).value();
        for (std::uint64_t step = 1;; ++step) {
          training.end_step(rank, step);
          if (step == request_at && rank < requests) agreement->request(kStopRequest);
          const Requests due = agreement->cross(step, {}).value();
          if ((due & kStopRequest) == 0) continue;
          stopped[rank] = step;
          training.end_step(rank, UINT64_MAX / 2);
          return;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(std::set(stopped.begin(), stopped.end()).size(), 1U) << testing::PrintToString(stopped);
    EXPECT_GE(stopped.front(), request_at);
  }
}

TEST(StepAgreement, RoundsFollowEachOther) {
  constexpr std::size_t kRanks = 2;
  constexpr std::uint64_t kSaves = 20;
  const auto store = make_local_store();
  Training training(kRanks, 1);
  std::vector<std::vector<std::uint64_t>> saved(kRanks);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto agreement = StepAgreement::start(group_of(store, rank, kRanks)).value();
      bool is_asked = false;
      for (std::uint64_t step = 1; saved[rank].size() < kSaves; ++step) {
        training.end_step(rank, step);
        if (rank == 0 && !is_asked) agreement->request(kSaveRequest);
        is_asked = true;
        if ((agreement->cross(step, {}).value() & kSaveRequest) == 0) continue;
        saved[rank].push_back(step);
        is_asked = false;
      }
      training.end_step(rank, UINT64_MAX / 2);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(saved[0], saved[1]);
  // (5) The keys of old rounds are gone.
  EXPECT_FALSE(store->get({"test/agreed/0"}).value());
  EXPECT_FALSE(store->get({"test/answer/0/1"}).value());
}

TEST(StepAgreement, NamesARankThatIsMissing) {
  const auto store = make_local_store();
  AgreementGroup group = group_of(store, 0, 2);
  group.deadline = milliseconds(300);
  const auto agreement = StepAgreement::start(group).value();
  EXPECT_EQ(agreement->cross(1, {}).value(), 0U);
  agreement->request(kStopRequest);
  Result<Requests> due = Requests{0};
  for (std::uint64_t step = 2; due; ++step) due = agreement->cross(step, {});
  EXPECT_EQ(due.error().code(), ErrorCode::kUnavailable);
  EXPECT_NE(std::string(due.error().what()).find("1 of 2 ranks have not answered within 0 s (rank 1)"),
            std::string::npos)
      << due.error().what();
}

void wait_for(RunStore& store, const std::string& key) {
  while (!store.get({key}).value()) std::this_thread::yield();
}

// A rank within its last steps gets a signal when another rank has ended: it does not wait for the other's answer.
TEST(StepAgreement, ARankThatEndedIsNotAwaited) {
  for (const std::size_t ended : {std::size_t{0}, std::size_t{1}}) {
    const auto store = make_local_store();
    const auto last = StepAgreement::start(group_of(store, 1 - ended, 2)).value();
    {
      const auto first = StepAgreement::start(group_of(store, ended, 2)).value();
      EXPECT_EQ(first->cross(9, {}).value(), 0U);
    }
    EXPECT_EQ(last->cross(8, {}).value(), 0U);
    last->request(kStopRequest);
    wait_for(*store, "test/answer/0/" + std::to_string(1 - ended));
    const Result<Requests> due = last->cross(9, {});
    ASSERT_TRUE(due) << due.error().what();
    EXPECT_EQ(*due, 0U);
  }
}

// A store that ends before the last ranks do is no failure of a step.
TEST(StepAgreement, BrokenStoreFailsOnlyRequests) {
  AgreementGroup group = group_of(std::make_shared<BrokenStore>(), 1, 2);
  group.deadline = milliseconds(50);
  std::atomic<int> warnings{0};
  group.warn = [&warnings](const Error& error) {
    EXPECT_NE(std::string(error.what()).find("the store is gone"), std::string::npos);
    ++warnings;
  };
  const auto agreement = StepAgreement::start(group).value();
  EXPECT_EQ(agreement->cross(1, {}).value(), 0U);
  while (warnings == 0) std::this_thread::yield();
  agreement->request(kStopRequest);
  Requests due = 0;
  for (std::uint64_t step = 2; due == 0; ++step) due = agreement->cross(step, {}).value();
  EXPECT_EQ(due, kUnanswered);
  EXPECT_EQ(warnings, 1);
}

// Of the calls of each rank a series fails, as while a client of a server makes another connection.
class FailingStore : public RunStore {
 public:
  explicit FailingStore(std::shared_ptr<RunStore> store) : store_(std::move(store)) {}
  Result<void> set(const std::string& key, const std::string& value) override {
    return fails() ? Result<void>(broken()) : store_->set(key, value);
  }
  Result<std::optional<std::vector<std::string>>> get(const std::vector<std::string>& keys) override {
    if (fails()) return broken();
    return store_->get(keys);
  }
  Result<void> remove(const std::string& key) override { return store_->remove(key); }

 private:
  bool fails() { return ++calls_ % 4 != 0; }
  static Error broken() { return {ErrorCode::kUnavailable, "the connection is gone"}; }

  std::shared_ptr<RunStore> store_;
  std::atomic<int> calls_{0};
};

TEST(StepAgreement, FailedCallsAreMadeAgain) {
  const auto store = make_local_store();
  const auto first = StepAgreement::start(group_of(std::make_shared<FailingStore>(store), 0, 2)).value();
  const auto second = StepAgreement::start(group_of(std::make_shared<FailingStore>(store), 1, 2)).value();
  first->request(kStopRequest);
  wait_for(*store, "test/agreed/0");
  Requests due = 0;
  for (std::uint64_t step = 1; (due & kStopRequest) == 0; ++step) {
    due = first->cross(step, {}).value();
    EXPECT_EQ(second->cross(step, {}).value(), due);
  }
}

// A store that is gone for longer than the deadline, and comes back.
class AwayStore : public RunStore {
 public:
  explicit AwayStore(std::shared_ptr<RunStore> store) : store_(std::move(store)) {}
  Result<void> set(const std::string& key, const std::string& value) override {
    return is_away ? Result<void>(away()) : store_->set(key, value);
  }
  Result<std::optional<std::vector<std::string>>> get(const std::vector<std::string>& keys) override {
    if (is_away) return away();
    return store_->get(keys);
  }
  Result<void> remove(const std::string& key) override { return store_->remove(key); }
  std::atomic<bool> is_away{true};

 private:
  static Error away() { return {ErrorCode::kUnavailable, "no route"}; }
  std::shared_ptr<RunStore> store_;
};

TEST(StepAgreement, StoreMayComeBack) {
  const auto store = make_local_store();
  const auto away = std::make_shared<AwayStore>(store);
  AgreementGroup group = group_of(away, 0, 2);
  group.deadline = milliseconds(2000);
  std::atomic<int> warnings{0};
  group.warn = [&warnings](const Error&) { ++warnings; };
  const auto first = StepAgreement::start(group).value();
  const auto second = StepAgreement::start(group_of(store, 1, 2)).value();
  while (warnings == 0) std::this_thread::yield();
  away->is_away = false;
  second->request(kStopRequest);
  Requests due = 0;
  for (std::uint64_t step = 1; (due & kStopRequest) == 0; ++step) {
    due = first->cross(step, {}).value();
    EXPECT_EQ(second->cross(step, {}).value(), due);
  }
  EXPECT_EQ(warnings, 1);
}

// A client whose server is out of reach waits for ever.
class HangingStore : public RunStore {
 public:
  explicit HangingStore(std::shared_future<void> end) : end_(std::move(end)) {}
  ~HangingStore() override { released = true; }
  Result<void> set(const std::string&, const std::string&) override { return hang(); }
  Result<std::optional<std::vector<std::string>>> get(const std::vector<std::string>&) override { return hang(); }
  Result<void> remove(const std::string&) override { return hang(); }

  static std::atomic<bool> released;

 private:
  Error hang() {
    end_.wait();
    return {ErrorCode::kUnavailable, "the server is gone"};
  }
  std::shared_future<void> end_;
};
std::atomic<bool> HangingStore::released{false};

// A store that answers until the rank has answered.
class CutStore : public RunStore {
 public:
  CutStore(std::shared_ptr<RunStore> store, std::shared_future<void> end)
      : store_(std::move(store)), end_(std::move(end)) {}
  Result<void> set(const std::string& key, const std::string& value) override { return store_->set(key, value); }
  Result<std::optional<std::vector<std::string>>> get(const std::vector<std::string>& keys) override {
    if (keys[0].find("agreed") != std::string::npos) end_.wait();
    return store_->get(keys);
  }
  Result<void> remove(const std::string& key) override { return store_->remove(key); }

 private:
  std::shared_ptr<RunStore> store_;
  std::shared_future<void> end_;
};

TEST(StepAgreement, HangWithinARoundHasADeadline) {
  std::promise<void> end;
  const auto store = make_local_store();
  AgreementGroup group = group_of(std::make_shared<CutStore>(store, end.get_future().share()), 1, 2);
  group.deadline = milliseconds(50);
  {
    const auto agreement = StepAgreement::start(group).value();
    ASSERT_TRUE(store->set("test/notice/0", "0"));
    wait_for(*store, "test/answer/0/1");
    EXPECT_EQ(agreement->cross(1, {}).error().code(), ErrorCode::kUnavailable);
    EXPECT_EQ(agreement->cross(2, {}).value(), 0U) << "the caller knows";
    agreement->request(kStopRequest);
    EXPECT_EQ(agreement->cross(3, {}).value(), kUnanswered);
    end.set_value();
  }
}

TEST(StepAgreement, HangingStoreIsLeftBehind) {
  std::promise<void> end;
  auto agreement =
      StepAgreement::start(group_of(std::make_shared<HangingStore>(end.get_future().share()), 0, 2)).value();
  agreement.reset();
  EXPECT_FALSE(HangingStore::released) << "the thread in the call still uses the store";
  end.set_value();
  while (!HangingStore::released) std::this_thread::yield();
}

TEST(StepAgreement, WaitIsInterruptible) {
  const auto store = make_local_store();
  const auto agreement = StepAgreement::start(group_of(store, 0, 2)).value();
  agreement->request(kStopRequest);
  Result<Requests> due = Requests{0};
  for (std::uint64_t step = 1; due; ++step) due = agreement->cross(step, [] { return true; });
  EXPECT_EQ(due.error().code(), ErrorCode::kCancelled);
}

}  // namespace
}  // namespace cairn::run

// The tasks of a WatchedThread, and what remains of a task that hangs. Hanging calls wait for an event of the test.
#include "storage/watched_thread.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <stdexcept>
#include <thread>

namespace cairn::storage {
namespace {

using namespace std::chrono_literals;
using Maybe = std::optional<Error>;

constexpr auto kGenerous = 60s;

Maybe wait_on() { return std::nullopt; }
Maybe give_up() { return Error(ErrorCode::kUnavailable, "given up"); }

// Tells when the last owner of the object is gone, and on which thread.
struct Owned {
  explicit Owned(std::promise<std::thread::id> dropped) : dropped_(std::move(dropped)) {}
  ~Owned() { dropped_.set_value(std::this_thread::get_id()); }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;

  std::promise<std::thread::id> dropped_;
};

TEST(WatchedThread, RunsItsTasksOnOneThread) {
  WatchedThread thread("for a test");
  const auto carry_out = [&](WatchedThread::Task task) {
    return thread.post(std::move(task)) ? thread.wait(wait_on) : give_up();
  };
  const auto where = [&] {
    return outcome_of([]() -> Result<std::thread::id> { return std::this_thread::get_id(); }, carry_out).value();
  };
  const std::thread::id first = where();
  EXPECT_NE(first, std::this_thread::get_id());
  EXPECT_EQ(where(), first);
  const auto throwing = []() -> Result<void> { throw std::runtime_error("of the work"); };
  EXPECT_THROW((void)outcome_of(throwing, carry_out), std::runtime_error);
  EXPECT_EQ(where(), first);
  thread.join();
  EXPECT_FALSE(thread.is_running());
  EXPECT_FALSE(thread.post([] {}));
}

TEST(WatchedThread, DropsTheTaskIfAbandoned) {
  std::promise<void> answer;  // of the hanging call
  std::promise<std::thread::id> dropped;
  auto ended = std::make_shared<std::promise<std::thread::id>>();  // shared with the thread
  auto where_dropped = dropped.get_future();
  auto where_ended = ended->get_future();
  auto thread =
      std::make_unique<WatchedThread>("for a test", [ended] { ended->set_value(std::this_thread::get_id()); });
  const std::shared_ptr<Watch> watch = thread->watch();
  auto hang = [kept = std::make_shared<Owned>(std::move(dropped)), returned = answer.get_future().share(),
               watch]() -> Result<void> {
    const OperationWatch::Call call(*watch->operations, OperationKind::kWrite, "writing", "a");
    returned.wait();
    return {};
  };
  const auto carry_out = [&](WatchedThread::Task task) {
    return thread->post(std::move(task)) ? thread->wait(give_up) : Maybe();
  };
  const Result<void> outcome = outcome_of(std::move(hang), carry_out);
  ASSERT_FALSE(outcome);
  EXPECT_STREQ(outcome.error().what(), "given up");
  thread.reset();
  EXPECT_TRUE(watch->stop.is_set());
  EXPECT_EQ(where_dropped.wait_for(0s), std::future_status::timeout);
  answer.set_value();
  ASSERT_EQ(where_ended.wait_for(kGenerous), std::future_status::ready);
  EXPECT_NE(where_ended.get(), std::this_thread::get_id());
  ASSERT_EQ(where_dropped.wait_for(0s), std::future_status::ready);
}

TEST(WatchedThread, ATaskMayDropTheLastOwner) {
  const auto ended = std::make_shared<std::promise<void>>();  // shared with the thread
  auto thread = std::make_shared<WatchedThread>("for a test", [ended] { ended->set_value(); });
  std::promise<void> alone;
  auto is_alone = alone.get_future().share();
  ASSERT_TRUE(thread->post([kept = thread, is_alone] { is_alone.wait(); }));
  thread.reset();
  alone.set_value();
  EXPECT_EQ(ended->get_future().wait_for(kGenerous), std::future_status::ready);
}

TEST(WatchedThread, PassesTheJudgesException) {
  std::promise<void> answer;
  WatchedThread thread("for a test");
  ASSERT_TRUE(thread.post([returned = answer.get_future().share()] { returned.wait(); }));
  EXPECT_THROW((void)thread.wait([]() -> Maybe { throw std::runtime_error("of the judge"); }), std::runtime_error);
  EXPECT_FALSE(thread.interrupted_for());
  thread.interrupt();
  EXPECT_TRUE(thread.interrupted_for() && thread.is_stopped());
  answer.set_value();
  thread.join();
}

}  // namespace
}  // namespace cairn::storage

#include "events/operation.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace cairn::events {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;

std::vector<EventKind> kinds_of(const std::vector<Event>& events) {
  std::vector<EventKind> kinds;
  for (const Event& event : events) kinds.push_back(event.kind);
  return kinds;
}

Operation begun_save(std::string_view directory = "run/step-12") {
  return Operation::begin(EventOperation::kSave, {directory, 2, 4});
}

TEST(Operation, StepsAndEndInTheirOrder) {
  EventQueue queue(10);
  Operation save = begun_save();
  save.step(EventKind::kPlanned);
  save.step(EventKind::kWritten, 7);
  save.end(EventKind::kCommitted, 9);
  const std::vector<Event> events = queue.take(minutes(1));
  ASSERT_EQ(kinds_of(events),
            (std::vector{EventKind::kBegun, EventKind::kPlanned, EventKind::kWritten, EventKind::kCommitted}));
  const Event& written = events[2];
  EXPECT_EQ(written.bytes, 7u);
  EXPECT_EQ(written.directory, "run/step-12");
  EXPECT_EQ(written.step, 12u);
  EXPECT_EQ(written.rank, 2u);
  EXPECT_EQ(written.rank_count, 4u);
  EXPECT_EQ(written.process_id, getpid());
  EXPECT_EQ(written.started + std::chrono::duration_cast<std::chrono::system_clock::duration>(written.duration),
            events[3].started);
  EXPECT_EQ(events[3].since_begun, events[1].duration + written.duration + events[3].duration);
}

TEST(Operation, StepInADirectoryWithSlashes) {
  EventQueue queue(10);
  for (const char* directory : {"/runs/7/step-12//", "step-12", "12/"}) begun_save(directory).leave();
  begun_save("/").leave();
  const std::vector<Event> events = queue.take(minutes(1));
  ASSERT_EQ(events.size(), 4u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(events[i].step, 12u) << events[i].directory;
  EXPECT_FALSE(events[3].step);
}

TEST(Operation, StepWithinItsOwnListener) {
  std::vector<Event> events;
  Operation save;
  const Subscription subscription = subscribe([&](const Event& event) {
    if (event.kind == EventKind::kPlanned) save.step(EventKind::kWritten, 7);
    events.push_back(event);
  });
  save = begun_save();
  save.step(EventKind::kPlanned, 3);
  save.end(EventKind::kCommitted, 9);
  ASSERT_EQ(kinds_of(events),
            (std::vector{EventKind::kBegun, EventKind::kWritten, EventKind::kPlanned, EventKind::kCommitted}));
  EXPECT_EQ(events[1].bytes, 7u);
  EXPECT_EQ(events[2].bytes, 3u);
  EXPECT_EQ(events[2].directory, "run/step-12");
  EXPECT_EQ(events[3].since_begun, events[2].duration + events[1].duration + events[3].duration);
}

TEST(Operation, StepsOfTwoThreadsAtOnce) {
  constexpr int kSteps = 2000;
  std::atomic<int> wrong{0};
  std::atomic<int> told{0};
  const Subscription subscription = subscribe([&](const Event& event) {
    if (event.kind == EventKind::kBegun || event.kind == EventKind::kCommitted) return;
    ++told;
    if (event.bytes != (event.kind == EventKind::kStaged ? 1U : 2U) || event.directory != "run/step-12") ++wrong;
  });
  Operation save = begun_save();
  std::thread staging([&] {
    for (int i = 0; i < kSteps; ++i) save.step(EventKind::kStaged, 1);
  });
  for (int i = 0; i < kSteps; ++i) save.step(EventKind::kWritten, 2);
  staging.join();
  save.end(EventKind::kCommitted, 3);
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(told, 2 * kSteps);
}

TEST(Operation, OneEndOfSeveral) {
  EventQueue queue(10);
  {
    Operation save = begun_save();
    save.fail(Error(ErrorCode::kNoSpace, "full"));
    save.end(EventKind::kCommitted, 1);
    save.step(EventKind::kWritten);
  }
  const std::vector<Event> events = queue.take(minutes(1));
  ASSERT_EQ(kinds_of(events), (std::vector{EventKind::kBegun, EventKind::kFailed}));
  EXPECT_EQ(events[1].cause->code(), ErrorCode::kNoSpace);
}

TEST(Operation, AbandonedByAnException) {
  EventQueue queue(10);
  try {
    const Operation save = begun_save();
    throw std::runtime_error("interrupted");
  } catch (const std::runtime_error&) {
  }
  const std::vector<Event> events = queue.take(minutes(1));
  ASSERT_EQ(kinds_of(events), (std::vector{EventKind::kBegun, EventKind::kFailed}));
  EXPECT_EQ(events[1].cause->code(), ErrorCode::kCancelled);
}

TEST(Operation, RemovalWithoutABegin) {
  EventQueue queue(10);
  { const Operation kept = Operation::of_removal("run/step-1"); }
  Operation removed = Operation::of_removal("run/step-2");
  removed.end(EventKind::kDeleted, 5);
  const std::vector<Event> events = queue.take(minutes(1));
  ASSERT_EQ(kinds_of(events), (std::vector{EventKind::kDeleted}));
  EXPECT_EQ(events[0].step, 2u);
}

TEST(Operation, LeftWithoutAnEnd) {
  EventQueue queue(10);
  { begun_save().leave(); }
  EXPECT_EQ(kinds_of(queue.take(minutes(1))), (std::vector{EventKind::kBegun}));
}

TEST(Operation, NothingForALateListener) {
  Operation save = begun_save();
  EXPECT_FALSE(save.is_told());
  EventQueue queue(10);
  save.step(EventKind::kWritten);
  save.end(EventKind::kCommitted, 1);
  EXPECT_TRUE(queue.take(milliseconds(0)).empty());
}

TEST(Operation, StepOfAnotherProcess) {
  EventQueue queue(10);
  Operation save = begun_save();
  const StepTime time{std::chrono::system_clock::time_point(std::chrono::hours(5)), std::chrono::nanoseconds(3)};
  save.step_of(77, EventKind::kWritten, time, 11);
  save.end(EventKind::kCommitted, 11);
  const std::vector<Event> events = queue.take(minutes(1));
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[1].process_id, 77);
  EXPECT_EQ(events[1].started, time.started);
  EXPECT_EQ(events[1].duration, time.duration);
  EXPECT_EQ(events[2].process_id, getpid());
}

TEST(Subscription, ExceptionOfAListener) {
  const Subscription throwing = subscribe([](const Event&) { throw std::runtime_error("listener"); });
  EventQueue queue(10);
  begun_save().end(EventKind::kCommitted, 1);
  EXPECT_EQ(queue.take(minutes(1)).size(), 2u);
}

TEST(Subscription, EndWithinItsListener) {
  int calls = 0;
  Subscription subscription;
  subscription = subscribe([&](const Event&) {
    ++calls;
    subscription.end();
  });
  begun_save().end(EventKind::kCommitted, 1);
  EXPECT_EQ(calls, 1);
}

TEST(Subscription, EndWaitsForACall) {
  std::promise<void> entered;
  std::promise<void> released;
  std::atomic<bool> has_left{false};
  Subscription subscription = subscribe([&](const Event&) {
    entered.set_value();
    released.get_future().wait();
    has_left = true;
  });
  std::thread saving([] { begun_save().leave(); });
  entered.get_future().wait();
  std::thread releasing([&] { released.set_value(); });
  subscription.end();
  EXPECT_TRUE(has_left);
  releasing.join();
  saving.join();
}

TEST(Subscription, SaveWithinAListener) {
  std::vector<std::uint64_t> ids;
  const Subscription subscription = subscribe([&](const Event& event) {
    ids.push_back(event.id);
    if (event.kind == EventKind::kBegun && ids.size() == 1) begun_save().end(EventKind::kCommitted, 1);
  });
  begun_save().end(EventKind::kCommitted, 1);
  ASSERT_EQ(ids.size(), 4u);
  EXPECT_EQ(ids[1], ids[2]);
  EXPECT_NE(ids[0], ids[1]);
  EXPECT_EQ(ids[3], ids[0]);
}

TEST(Subscription, MovedToAnotherObject) {
  int calls = 0;
  Subscription first = subscribe([&](const Event&) { ++calls; });
  Subscription second = std::move(first);
  first.end();
  begun_save().leave();
  EXPECT_EQ(calls, 1);
  second = Subscription();
  begun_save().leave();
  EXPECT_EQ(calls, 1);
}

TEST(Subscription, NoListenersInAFork) {
  int calls = 0;
  Subscription subscription = subscribe([&](const Event&) { ++calls; });
  Operation parents = begun_save();
  const pid_t child = fork();
  if (child == 0) {
    parents.end(EventKind::kCommitted, 1);
    { const Operation own = begun_save(); }
    subscription.end();
    EventQueue queue(10);
    begun_save().leave();
    _exit(calls == 1 && queue.take(minutes(1)).size() == 1 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  parents.leave();
}

TEST(EventQueue, DropsBeyondItsCapacity) {
  EventQueue queue(2);
  for (int i = 0; i < 5; ++i) begun_save().leave();
  EXPECT_EQ(queue.take(minutes(1)).size(), 2u);
  EXPECT_EQ(queue.dropped(), 3u);
  begun_save().leave();
  EXPECT_EQ(queue.take(minutes(1)).size(), 1u);
}

TEST(EventQueue, OnlyTheWantedKinds) {
  EventQueue queue(2, {EventKind::kCommitted, EventKind::kFailed});
  for (int i = 0; i < 3; ++i) begun_save().leave();
  begun_save().end(EventKind::kCommitted, 1);
  EXPECT_EQ(kinds_of(queue.take(minutes(1))), (std::vector{EventKind::kCommitted}));
  EXPECT_EQ(queue.dropped(), 0u);
}

TEST(EventQueue, CloseEndsTheWait) {
  EventQueue queue(2);
  std::thread closing([&] { queue.close(); });
  EXPECT_TRUE(queue.take(minutes(10)).empty());
  closing.join();
  EXPECT_TRUE(queue.is_closed());
  EXPECT_FALSE(begun_save().is_told());
}

}  // namespace
}  // namespace cairn::events

#include "os/signal_watch.h"

#include <gtest/gtest.h>
#include <sanitizers.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

namespace cairn::os {
namespace {

std::atomic<int> calls_before{0};

void count_call(int) { ++calls_before; }

// The signals that a watch has told of.
class Told {
 public:
  SignalWatch::Seen seen() {
    return [this](int signal) {
      ++count_;
      if (count_ == 1) first_.set_value(signal);
    };
  }
  int first() { return first_.get_future().get(); }
  int count() const { return count_; }

 private:
  std::promise<int> first_;
  std::atomic<int> count_{0};
};

TEST(SignalWatch, FirstArrivalReachesTheFunction) {
  Told told;
  const auto watch = SignalWatch::start({SIGUSR1, SIGUSR2}, told.seen()).value();
  raise(SIGUSR2);
  EXPECT_EQ(told.first(), SIGUSR2);
}

TEST(SignalWatch, CallsTheHandlerBefore) {
  struct sigaction action = {};
  action.sa_handler = count_call;
  sigaction(SIGUSR1, &action, nullptr);
  calls_before = 0;
  {
    Told told;
    const auto watch = SignalWatch::start({SIGUSR1}, told.seen()).value();
    raise(SIGUSR1);
    EXPECT_EQ(told.first(), SIGUSR1);
    EXPECT_EQ(calls_before, 1);
    raise(SIGUSR1);  // at once: counts as the first
    EXPECT_EQ(calls_before, 1);
  }
  raise(SIGUSR1);
  EXPECT_EQ(calls_before, 2) << "the handler before is back in place";
  signal(SIGUSR1, SIG_DFL);
}

// Returns how the child ended.
template <typename Body>
int status_after(Body&& body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(7);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

TEST(SignalWatch, SecondArrivalTakesTheOldAction) {
  const int status = status_after([] {
    Told told;
    const auto watch = SignalWatch::start({SIGTERM}, told.seen()).value();
    raise(SIGTERM);
    if (told.first() != SIGTERM) _exit(1);
    std::this_thread::sleep_for(std::chrono::milliseconds(2100));
    raise(SIGTERM);
  });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
}

TEST(SignalWatch, ForkedChildHasTheActionBefore) {
  if (kThreadSanitized) {
    GTEST_SKIP() << "the thread sanitizer keeps signals from a child made by fork";
  }
  Told told;
  const auto watch = SignalWatch::start({SIGTERM}, told.seen()).value();
  const int status = status_after([] { raise(SIGTERM); });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
  EXPECT_EQ(told.count(), 0);
}

TEST(SignalWatch, ForkedChildIgnoresMessages) {
  if (kThreadSanitized) {
    GTEST_SKIP() << "the thread sanitizer keeps signals from a child made by fork";
  }
  Told told;
  const auto watch = SignalWatch::start({SIGUSR1}, told.seen()).value();
  const int status = status_after([] {
    raise(SIGUSR1);
    raise(SIGUSR1);
  });
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
  EXPECT_EQ(told.count(), 0);
}

TEST(SignalWatch, UncalledHandlerTakesTheSecond) {
  const int status = status_after([] {
    struct sigaction action = {};
    action.sa_handler = [](int) { _exit(3); };
    sigaction(SIGINT, &action, nullptr);
    Told told;
    const auto watch = SignalWatch::start({SIGINT}, told.seen(), {SIGINT}).value();
    raise(SIGINT);
    if (told.first() != SIGINT) _exit(1);
    std::this_thread::sleep_for(std::chrono::milliseconds(2100));
    raise(SIGINT);
  });
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 3) << status;
}

TEST(SignalWatch, RefusesSignalsThatAreFixed) {
  Told told;
  EXPECT_EQ(SignalWatch::start({SIGUSR1, SIGKILL}, told.seen()).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(SignalWatch::start({0}, told.seen()).error().code(), ErrorCode::kInvalidArgument);
  struct sigaction action = {};
  sigaction(SIGUSR1, nullptr, &action);
  EXPECT_EQ(action.sa_handler, SIG_DFL) << "the refused watch has left SIGUSR1";
}

TEST(SignalWatch, SeveralWatchesSeeAnArrival) {
  Told first, second;
  const auto watch = SignalWatch::start({SIGUSR1}, first.seen()).value();
  {
    const auto other = SignalWatch::start({SIGUSR1, SIGUSR2}, second.seen()).value();
    raise(SIGUSR1);
    EXPECT_EQ(first.first(), SIGUSR1);
    EXPECT_EQ(second.first(), SIGUSR1);
  }
  struct sigaction action = {};
  sigaction(SIGUSR1, nullptr, &action);
  EXPECT_NE(action.sa_flags & SA_SIGINFO, 0) << "the first watch is still there";
}

}  // namespace
}  // namespace cairn::os

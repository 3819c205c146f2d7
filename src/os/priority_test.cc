#include "os/priority.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

namespace cairn::os {
namespace {

struct Standing {
  int niceness = 0;
  int policy = 0;
};

// The state of a thread with the initial `policy`, after set_priority().
Standing standing_after(int policy, const Priority& priority) {
  Standing standing;
  std::thread([&] {
    const sched_param no_parameters{};
    EXPECT_EQ(sched_setscheduler(0, policy, &no_parameters), 0);
    set_priority(priority);
    set_priority(priority);  // changes nothing more
    standing = {getpriority(PRIO_PROCESS, 0), sched_getscheduler(0)};
  }).join();
  return standing;
}

TEST(Priority, StandsBackWithoutInterrupting) {
  const int before = getpriority(PRIO_PROCESS, 0);
  const Standing standing = standing_after(SCHED_OTHER, {.nice = 1});
  EXPECT_EQ(standing.niceness, before < 19 ? before + 1 : 19);
  EXPECT_EQ(standing.policy, SCHED_BATCH);
  EXPECT_EQ(getpriority(PRIO_PROCESS, 0), before);  // the call changed only its own thread
}

TEST(Priority, AnEmptyRequestChangesNothing) {
  const Standing standing = standing_after(SCHED_OTHER, {});
  EXPECT_EQ(standing.niceness, getpriority(PRIO_PROCESS, 0));
  EXPECT_EQ(standing.policy, SCHED_OTHER);
}

TEST(Priority, KeepsALowerPriorityUnchanged) { EXPECT_EQ(standing_after(SCHED_IDLE, {.nice = 1}).policy, SCHED_IDLE); }

TEST(SessionNiceness, IsWrittenForTheSession) {
  if (access("/proc/self/autogroup", W_OK) != 0) GTEST_SKIP() << "sessions have none here";
  const pid_t child = fork();
  if (child == 0) {
    (void)setsid();
    const auto reads = [](const char* end) {
      std::ifstream file("/proc/self/autogroup");
      std::string group;
      return !std::getline(file, group) || group.ends_with(end);  // an empty file: the process is in no autogroup
    };
    SessionNiceness niceness;
    bool good = reads(" nice 0");
    for (const auto& [nice, end] : {std::pair(7, " nice 7"), std::pair(7, " nice 7"), std::pair(0, " nice 0")}) {
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
      do {
        niceness.set(nice);
      } while (!reads(end) && std::chrono::steady_clock::now() < until);
      good = good && reads(end);
    }
    _exit(good ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace cairn::os

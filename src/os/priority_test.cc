#include "os/priority.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>

#include <thread>

namespace cairn::os {
namespace {

struct Standing {
  int niceness = 0;
  int policy = 0;
};

// Of a thread that began with `policy`, after set_priority().
Standing standing_after(int policy, const Priority& priority) {
  Standing standing;
  std::thread([&] {
    const sched_param no_parameters{};
    EXPECT_EQ(sched_setscheduler(0, policy, &no_parameters), 0);
    set_priority(priority);
    standing = {getpriority(PRIO_PROCESS, 0), sched_getscheduler(0)};
  }).join();
  return standing;
}

TEST(Priority, StandsBackWithoutInterrupting) {
  const int before = getpriority(PRIO_PROCESS, 0);
  const Standing standing = standing_after(SCHED_OTHER, {.nice = 1});
  EXPECT_EQ(standing.niceness, before < 19 ? before + 1 : 19);
  EXPECT_EQ(standing.policy, SCHED_BATCH);
  EXPECT_EQ(getpriority(PRIO_PROCESS, 0), before);  // it is the thread's alone
}

TEST(Priority, ThatIsNotAskedForChangesNothing) {
  const Standing standing = standing_after(SCHED_OTHER, {});
  EXPECT_EQ(standing.niceness, getpriority(PRIO_PROCESS, 0));
  EXPECT_EQ(standing.policy, SCHED_OTHER);
}

TEST(Priority, LeavesAThreadThatStandsBackFurtherWhereItIs) {
  EXPECT_EQ(standing_after(SCHED_IDLE, {.nice = 1}).policy, SCHED_IDLE);
}

}  // namespace
}  // namespace cairn::os

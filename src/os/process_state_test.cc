#include "os/process_state.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <thread>

namespace cairn::os {
namespace {

struct TwoNumbers {
  int first = 0;
  int second = 0;
};
ProcessState<TwoNumbers>& two_numbers = ProcessState<TwoNumbers>::instance();

bool are_equal() {
  return two_numbers.use([](const TwoNumbers& numbers) { return numbers.first == numbers.second; });
}

TEST(ProcessState, IsWholeAndUnlockedInAChild) {
  std::atomic<bool> is_over{false};
  std::thread writer([&] {
    while (!is_over) {
      two_numbers.use([](TwoNumbers& numbers) {
        ++numbers.first;
        std::this_thread::yield();
        ++numbers.second;
      });
    }
  });
  for (int round = 0; round < 50; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);  // ends a child that waits for the mutex
      _exit(are_equal() ? EXIT_SUCCESS : EXIT_FAILURE);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "round " << round;
  }
  is_over = true;
  writer.join();
  EXPECT_TRUE(are_equal());
}

struct Generation {
  int number = 0;
  void in_child() { ++number; }
};

TEST(ProcessState, IsRenewedInAChildOnly) {
  ProcessState<Generation>& generation = ProcessState<Generation>::instance();
  const auto number = [&] { return generation.use([](const Generation& found) { return found.number; }); };
  const pid_t child = fork();
  if (child == 0) _exit(number());
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_EQ(number(), 0);
}

}  // namespace
}  // namespace cairn::os

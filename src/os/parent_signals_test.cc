#include "os/parent_signals.h"

#include <gtest/gtest.h>
#include <sanitizers.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

namespace cairn::os {
namespace {

// A child that has called take_only_from_parent() for a signal, and waits.
class Worker {
 public:
  explicit Worker(int signal, void (*handler)(int) = SIG_DFL) {
    std::array<int, 2> ready{};
    EXPECT_EQ(pipe(ready.data()), 0);
    child_ = fork();
    if (child_ == 0) {
      ::signal(signal, handler);
      char byte = take_only_from_parent({signal}) ? 1 : 0;
      if (write(ready[1], &byte, 1) != 1) _exit(1);
      while (true) pause();
    }
    char byte = 0;
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    EXPECT_EQ(byte, 1);
    close(ready[0]);
    close(ready[1]);
  }
  pid_t pid() const { return child_; }
  // How the child has ended.
  int status() const {
    int status = 0;
    waitpid(child_, &status, 0);
    return status;
  }

 private:
  pid_t child_ = 0;
};

// Another process sends the signal.
void send_by_another(pid_t target, int signal) {
  const pid_t sender = fork();
  if (sender == 0) _exit(kill(target, signal));
  int status = 0;
  waitpid(sender, &status, 0);
  EXPECT_EQ(status, 0);
}

class ParentSignals : public testing::Test {
 protected:
  void SetUp() override {
    if (kThreadSanitized) GTEST_SKIP() << "the thread sanitizer keeps signals from a child made by fork";
  }
};

TEST_F(ParentSignals, SignalOfTheParentEnds) {
  const Worker worker(SIGTERM);
  kill(worker.pid(), SIGTERM);
  const int status = worker.status();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
}

TEST_F(ParentSignals, SignalOfAnotherIsIgnored) {
  const Worker worker(SIGUSR1);
  send_by_another(worker.pid(), SIGUSR1);
  kill(worker.pid(), SIGKILL);
  const int status = worker.status();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
}

TEST_F(ParentSignals, ParentReachesTheHandler) {
  const Worker worker(SIGTERM, [](int) { _exit(3); });
  send_by_another(worker.pid(), SIGTERM);
  kill(worker.pid(), SIGTERM);
  const int status = worker.status();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 3) << status;
}

TEST_F(ParentSignals, RefusesSignalsThatAreFixed) {
  EXPECT_EQ(take_only_from_parent({SIGKILL}).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(take_only_from_parent({65}).error().code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace cairn::os

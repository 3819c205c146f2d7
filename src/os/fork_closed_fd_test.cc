#include "os/fork_closed_fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <thread>

namespace {

// Called before each close(2) of this thread.
thread_local std::function<void(int)> before_close;

}  // namespace

// Takes the place of the C library's function for all code linked into this test program.
extern "C" int close(int fd) {
  if (before_close) before_close(fd);
  return static_cast<int>(syscall(SYS_close, fd));
}

namespace cairn::os {
namespace {

std::unique_ptr<ForkClosedFd> open_null() {
  return std::make_unique<ForkClosedFd>(Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC)));
}

// Forks, and returns the answer of the child.
bool ask_child(const std::function<bool()>& question) {
  const pid_t child = fork();
  if (child == 0) _exit(question() ? 1 : 0);
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status != 0;
}

bool is_open_in_child(int fd) {
  return ask_child([fd] { return fcntl(fd, F_GETFD) >= 0; });
}

// Whether the descriptor is the one from open_null(): a sanitizer may open a pipe under the number of a closed one.
bool is_null_in_child(int fd) {
  return ask_child([fd] {
    struct stat null {};
    struct stat found {};
    stat("/dev/null", &null);
    return fstat(fd, &found) == 0 && found.st_rdev == null.st_rdev;
  });
}

TEST(ForkClosedFd, IsClosedInAChild) {
  const auto fd = open_null();
  EXPECT_FALSE(is_open_in_child(fd->get()));
  EXPECT_EQ(fcntl(fd->get(), F_GETFD), FD_CLOEXEC) << "still open in the parent";
}

// The child destroys the object, and forks itself.
TEST(ForkClosedFd, IsForgottenByAChild) {
  auto fd = open_null();
  const pid_t child = fork();
  if (child == 0) {
    fd.reset();
    const auto new_owner = std::make_unique<std::atomic<int>>(STDERR_FILENO);  // often in the memory of the old object
    _exit(is_open_in_child(STDERR_FILENO) && *new_owner == STDERR_FILENO ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// A second thread forks while this thread is inside reset(), just before close(2).
TEST(ForkClosedFd, IsClosedAfterAForkInTheReset) {
  // A fork that waits for the end of reset() is right; the wait below then ends without the fork.
  constexpr std::chrono::milliseconds kForkTime{500};
  auto fd = open_null();
  std::future<bool> open_in_child;
  before_close = [&, number = fd->get()](int closing) {
    if (closing != number || open_in_child.valid()) return;
    open_in_child = std::async(std::launch::async, [number] { return is_null_in_child(number); });
    open_in_child.wait_for(kForkTime);
  };
  fd->reset();
  before_close = nullptr;
  ASSERT_TRUE(open_in_child.valid()) << "reset() called close";
  EXPECT_FALSE(open_in_child.get());
}

}  // namespace
}  // namespace cairn::os

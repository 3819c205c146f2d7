// Threads and processes that lock one directory.
#include "storage/posix/directory_lock.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <thread>
#include <vector>

#include "storage/testing/refused_calls.h"
#include "storage/testing/scratch_directory.h"

namespace cairn::storage {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

class DirectoryLockTest : public testing::Test {
 protected:
  std::shared_ptr<const os::Fd> directory() const {
    return std::make_shared<const os::Fd>(::open(scratch_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
  fs::path lock_file() const { return scratch_.path() / kLockName; }
  bool is_empty() const { return fs::is_empty(scratch_.path()); }

  ScratchDirectory scratch_;
};

TEST_F(DirectoryLockTest, LeavesNoFileBehind) {
  for (int i = 0; i < 3; ++i) {
    const auto lock = lock_directory(directory(), 1min);
    ASSERT_TRUE(lock && *lock);
    EXPECT_TRUE(fs::exists(lock_file()));
  }
  EXPECT_TRUE(is_empty());
}

TEST_F(DirectoryLockTest, FindsNoRemovedDirectory) {
  const auto opened = directory();
  ASSERT_TRUE(fs::remove(scratch_.path()));
  EXPECT_EQ(lock_directory(opened, 1min).error().code(), ErrorCode::kNotFound);
}

// A process that waits for the lock finds out when the holder has removed the directory.
TEST_F(DirectoryLockTest, TheHolderRemovesTheDirectory) {
  const auto opened = directory();
  std::atomic<bool> waits = false;
  Result<std::unique_ptr<StorageLock>> second = Error(ErrorCode::kInternal, "not tried");
  std::thread waiting;
  {
    const auto held = lock_directory(opened, 1min);
    ASSERT_TRUE(held && *held);
    waiting = std::thread([&] {
      waits = true;
      second = lock_directory(opened, 1min);
    });
    while (!waits) std::this_thread::yield();
    fs::remove(lock_file());
    ASSERT_TRUE(fs::remove(scratch_.path()));
  }
  waiting.join();
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), ErrorCode::kNotFound) << second.error().what();
}

// The counter is right only if the lock excludes all threads and processes.
TEST_F(DirectoryLockTest, ExcludesThreadsAndProcesses) {
  constexpr int kProcesses = 2;
  constexpr int kThreads = 3;
  constexpr int kRounds = 100;
  const fs::path counter = scratch_.path() / "counter";
  std::ofstream(counter) << 0;
  const auto count = [&] {
    for (int round = 0; round < kRounds; ++round) {
      const auto lock = lock_directory(directory(), 1min);
      if (!lock || !*lock) return false;
      int value = 0;
      std::ifstream(counter) >> value;
      std::ofstream(counter) << value + 1;
    }
    return true;
  };
  std::vector<pid_t> children;
  for (int process = 0; process < kProcesses; ++process) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    std::vector<std::thread> threads;
    std::atomic<bool> well = true;
    for (int thread = 0; thread < kThreads; ++thread) threads.emplace_back([&] { well = count() && well; });
    for (std::thread& thread : threads) thread.join();
    _exit(well ? 0 : 1);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  int value = 0;
  std::ifstream(counter) >> value;
  EXPECT_EQ(value, kProcesses * kThreads * kRounds);
  EXPECT_FALSE(fs::exists(lock_file()));
}

// A waiter has the file open when the holder retires the file: the waiter's lock is worthless.
TEST_F(DirectoryLockTest, RefusesARetiredFile) {
  auto lock = lock_directory(directory(), 1min);
  ASSERT_TRUE(lock && *lock);
  const os::Fd waiter(::open(lock_file().c_str(), O_RDWR | O_CLOEXEC));
  // The second name stands for the cache of an NFS client, where the file still has the lock name.
  fs::create_hard_link(lock_file(), scratch_.path() / "cached");
  lock->reset();
  EXPECT_EQ(flock(waiter.get(), LOCK_EX | LOCK_NB), 0);
  EXPECT_EQ(flock(waiter.get(), LOCK_UN), 0);
  fs::rename(scratch_.path() / "cached", lock_file());
  const auto next = lock_directory(directory(), 300ms);
  ASSERT_FALSE(next);  // the name is right, but the length shows that the file is retired
  EXPECT_EQ(next.error().code(), ErrorCode::kUnavailable);
  fs::remove(lock_file());
  const auto again = lock_directory(directory(), 1min);
  EXPECT_TRUE(again && *again);
}

// Files of processes that do not hold the lock appear in the directory all the time.
TEST_F(DirectoryLockTest, GivesUpInAChangingDirectory) {
  const auto held = lock_directory(directory(), 1min);
  ASSERT_TRUE(held && *held);
  std::atomic<bool> has_ended = false;
  std::atomic<bool> changes = true;
  std::thread neighbour([&] {
    const auto end = std::chrono::steady_clock::now() + 30s;
    const fs::path file = scratch_.path() / "file";
    while (!has_ended && std::chrono::steady_clock::now() < end) {
      std::ofstream(file).close();
      fs::remove(file);
      std::this_thread::sleep_for(1ms);
    }
    changes = false;
  });
  const auto next = lock_directory(directory(), 100ms);
  EXPECT_TRUE(changes);
  has_ended = true;
  neighbour.join();
  ASSERT_FALSE(next);
  EXPECT_EQ(next.error().code(), ErrorCode::kUnavailable);
}

// The state after a file server gave the lock away: the name belongs to the next holder.
TEST_F(DirectoryLockTest, ALostLockLeavesTheNextHolders) {
  auto lost = lock_directory(directory(), 1min);
  ASSERT_TRUE(lost && *lost);
  EXPECT_TRUE((*lost)->is_held());
  fs::remove(lock_file());
  EXPECT_FALSE((*lost)->is_held());
  const auto next = lock_directory(directory(), 1min);
  ASSERT_TRUE(next && *next);
  EXPECT_FALSE((*lost)->is_held());
  lost->reset();
  EXPECT_TRUE(fs::exists(lock_file()));
  EXPECT_TRUE((*next)->is_held());
}

// A free lock is granted even after the stop.
TEST_F(DirectoryLockTest, EndsTheWaitAtAStop) {
  os::StopFlag stop;
  stop.set();
  auto held = lock_directory(directory(), 1min, &stop);
  ASSERT_TRUE(held && *held);
  const auto begin = std::chrono::steady_clock::now();
  const auto next = lock_directory(directory(), 10min, &stop);
  ASSERT_FALSE(next);
  EXPECT_EQ(next.error().code(), ErrorCode::kCancelled);
  EXPECT_EQ(next.error().file(), std::string(kLockName));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 9min);
}

TEST_F(DirectoryLockTest, FreeAfterAKilledProcess) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto lock = lock_directory(directory(), 1min);
    (void)!write(ready[1], "x", 1);
    pause();
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  const auto busy = lock_directory(directory(), 50ms);
  ASSERT_FALSE(busy);
  EXPECT_EQ(busy.error().file(), std::string(kLockName));
  ASSERT_EQ(kill(child, SIGKILL), 0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  auto lock = lock_directory(directory(), 1min);
  ASSERT_TRUE(lock && *lock);
  lock->reset();
  EXPECT_TRUE(is_empty());
}

TEST_F(DirectoryLockTest, ReleasedDespiteAForkedChild) {
  auto lock = lock_directory(directory(), 1min);
  ASSERT_TRUE(lock && *lock);
  int hold[2];
  ASSERT_EQ(pipe(hold), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(hold[1]);
    char byte = 0;
    (void)!read(hold[0], &byte, 1);  // keeps the open file of the lock alive
    _exit(0);
  }
  lock->reset();
  const auto next = lock_directory(directory(), 1min);
  EXPECT_TRUE(next && *next);
  close(hold[1]);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
}

TEST_F(DirectoryLockTest, NullWithoutSupportForLocks) {
  for (const int error : {ENOLCK, ENOSYS, EOPNOTSUPP}) {
    SCOPED_TRACE(std::strerror(error));
    const bool ran = run_with_refused({{SYS_flock, error}}, [&] {
      const auto lock = lock_directory(directory(), 1min);
      ASSERT_TRUE(lock) << lock.error().what();
      EXPECT_EQ(*lock, nullptr);
    });
    if (!ran) GTEST_SKIP() << "no seccomp here";
    EXPECT_TRUE(is_empty());
  }
}

// The advice to remove the lock file would be wrong: the file is in order, and another save may hold the lock.
TEST_F(DirectoryLockTest, NamesTheFileSystemsFailure) {
  constexpr unsigned kFlags = 3;
  const std::vector<std::vector<RefusedCall>> cases{
      {{SYS_fstat, EIO}, {SYS_newfstatat, EIO, kFlags, AT_EMPTY_PATH}},
      {{SYS_statx, EIO}},
  };
  for (const std::vector<RefusedCall>& refused : cases) {
    const bool ran = run_with_refused(refused, [&] {
      const auto lock = lock_directory(directory(), 300ms);
      ASSERT_FALSE(lock);
      EXPECT_EQ(lock.error().code(), ErrorCode::kUnavailable);
      EXPECT_EQ(lock.error().error_number(), EIO) << lock.error().what();
      EXPECT_EQ(std::string(lock.error().what()).find("remove"), std::string::npos) << lock.error().what();
    });
    if (!ran) GTEST_SKIP() << "no seccomp here";
  }
}

TEST_F(DirectoryLockTest, FollowsNoLinkToAFile) {
  fs::create_symlink("elsewhere", lock_file());
  EXPECT_FALSE(lock_directory(directory(), 1min));
  EXPECT_FALSE(fs::exists(scratch_.path() / "elsewhere"));
  fs::remove(lock_file());
  fs::create_directory(lock_file());
  EXPECT_FALSE(lock_directory(directory(), 1min));
}

}  // namespace
}  // namespace cairn::storage

#include "os/process_identity.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <thread>

namespace cairn::os {
namespace {

using State = ProcessIdentity::State;

TEST(ProcessIdentity, ThisProcessIsAlive) { EXPECT_EQ(ProcessIdentity::mine().state(), State::kAlive); }

TEST(ProcessIdentity, AnEndedProcessIsDead) {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  ProcessIdentity ended = ProcessIdentity::mine();
  ended.pid = child;
  waitpid(child, nullptr, 0);
  EXPECT_EQ(ended.state(), State::kDead);
}

TEST(ProcessIdentity, AZombieProcessIsDead) {
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  ProcessIdentity zombie = ProcessIdentity::mine();
  zombie.pid = child;
  std::ifstream stat("/proc/" + std::to_string(child) + "/stat");
  std::string field;
  for (int i = 0; i < 22; ++i) stat >> field;
  zombie.start_time = std::stoull(field);
  EXPECT_EQ(zombie.state(), State::kAlive);
  kill(child, SIGKILL);
  siginfo_t info{};
  waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);  // the child has ended, and stays a zombie
  EXPECT_EQ(zombie.state(), State::kDead);
  waitpid(child, nullptr, 0);
}

// The state of a killed process with one thread inside a system call.
TEST(ProcessIdentity, IsAliveWithItsLastThread) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    std::thread([&] {
      const ProcessIdentity mine = ProcessIdentity::mine();
      while (true) {  // until the first thread is a zombie
        std::ifstream stat("/proc/self/stat");
        std::string pid, name, state;
        stat >> pid >> name >> state;
        if (state == "Z") break;
      }
      const char alive = mine.state() == State::kAlive ? 'y' : 'n';
      if (write(ready[1], &alive, 1) != 1) _exit(1);
      _exit(0);
    }).detach();
    syscall(SYS_exit, 0);  // ends only the first thread
  }
  char alive = '?';
  EXPECT_EQ(read(ready[0], &alive, 1), 1);
  EXPECT_EQ(alive, 'y');
  waitpid(child, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
}

TEST(ProcessIdentity, AnEarlierHolderOfThePidIsDead) {
  ProcessIdentity earlier = ProcessIdentity::mine();
  earlier.start_time -= 1;
  EXPECT_EQ(earlier.state(), State::kDead);
}

TEST(ProcessIdentity, AnotherBootMeansElsewhere) {
  ProcessIdentity other = ProcessIdentity::mine();
  other.boot_id = "another";
  EXPECT_EQ(other.state(), State::kElsewhere);
  other.boot_id = "";
  EXPECT_EQ(other.state(), State::kElsewhere);
}

TEST(ProcessIdentity, AnotherHostMeansElsewhere) {
  ProcessIdentity other = ProcessIdentity::mine();
  other.host = "another";
  EXPECT_EQ(other.state(), State::kElsewhere);
  other = ProcessIdentity::mine();
  other.pid_namespace = "pid:[1]";
  EXPECT_EQ(other.state(), State::kElsewhere);
}

TEST(Random128, DiffersAtTheSecondCall) {
  const Random128 a = random_128();
  const Random128 b = random_128();
  EXPECT_FALSE(a.high == b.high && a.low == b.low);
}

}  // namespace
}  // namespace cairn::os

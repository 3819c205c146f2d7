#include "os/process_identity.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace cairn::os {
namespace {

using State = ProcessIdentity::State;

TEST(ProcessIdentity, OfThisProcessIsAlive) { EXPECT_EQ(ProcessIdentity::mine().state(), State::kAlive); }

TEST(ProcessIdentity, OfAnEndedProcessIsDead) {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  ProcessIdentity ended = ProcessIdentity::mine();
  ended.pid = child;
  waitpid(child, nullptr, 0);
  EXPECT_EQ(ended.state(), State::kDead);
}

TEST(ProcessIdentity, TellsAProcessFromALaterOneWithItsPid) {
  ProcessIdentity earlier = ProcessIdentity::mine();
  earlier.start_time -= 1;
  EXPECT_EQ(earlier.state(), State::kDead);
}

TEST(ProcessIdentity, OfAnotherBootMayBeAnotherMachineOfThatName) {
  ProcessIdentity other = ProcessIdentity::mine();
  other.boot_id = "another";
  EXPECT_EQ(other.state(), State::kElsewhere);
  other.boot_id = "";
  EXPECT_EQ(other.state(), State::kElsewhere);
}

TEST(ProcessIdentity, OfAnotherHostOrContainerCantBeTold) {
  ProcessIdentity other = ProcessIdentity::mine();
  other.host = "another";
  EXPECT_EQ(other.state(), State::kElsewhere);
  other = ProcessIdentity::mine();
  other.pid_namespace = "pid:[1]";
  EXPECT_EQ(other.state(), State::kElsewhere);
}

TEST(Random128, IsNotTwiceTheSame) {
  const Random128 a = random_128();
  const Random128 b = random_128();
  EXPECT_FALSE(a.high == b.high && a.low == b.low);
}

}  // namespace
}  // namespace cairn::os

#include "os/child_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <map>

namespace cairn::os {
namespace {

constexpr std::chrono::seconds kGenerous{60};

// A pipe; the child gets the write end.
struct Pipe {
  Pipe() {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    read_end = Fd(ends[0]);
    write_end = Fd(ends[1]);
  }
  std::string read_all() {
    write_end = Fd();
    std::string text(100'000, '\0');
    std::size_t got = 0;
    for (ssize_t n = 1; n > 0; got += static_cast<std::size_t>(n)) {
      n = read(read_end.get(), text.data() + got, text.size() - got);
      if (n < 0) break;
    }
    text.resize(got);
    return text;
  }
  Fd read_end;
  Fd write_end;
};

// The output of a shell script to descriptor 3.
std::string output_of(const std::string& script) {
  Pipe pipe;
  auto child = ChildProcess::start("/bin/sh", {"-c", script}, pipe.write_end.get());
  EXPECT_TRUE(child) << child.error().what();
  std::string text = pipe.read_all();
  const auto end = child->wait_for(kGenerous);
  EXPECT_TRUE(end && end->was_clean());
  return text;
}

TEST(ChildProcess, GetsTheDescriptorAndNoOther) {
  const Fd inherited(open("/dev/zero", O_RDONLY));  // without close-on-exec
  const Fd high(fcntl(inherited.get(), F_DUPFD, 200));
  Pipe pipe;
  auto child = ChildProcess::start("/bin/sh", {"-c", "kill -STOP $$"}, pipe.write_end.get()).value();
  siginfo_t stopped;  // once stopped, the child opens no more files
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child.id()), &stopped, WSTOPPED), 0);
  const std::string folder = "/proc/" + std::to_string(child.id()) + "/fd";
  std::map<std::string, std::string> open_in_child;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    open_in_child[entry.path().filename()] = std::filesystem::read_symlink(entry.path());
  }
  child.kill(SIGKILL);
  EXPECT_TRUE(child.wait_for(kGenerous));
  const std::string given =
      std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(pipe.write_end.get())).string();
  EXPECT_EQ(open_in_child, (std::map<std::string, std::string>{
                               {"0", "/dev/null"}, {"1", "/dev/null"}, {"2", "/dev/null"}, {"3", given}}));
}

TEST(ChildProcess, HasASessionOfItsOwn) {
  EXPECT_EQ(output_of("[ $(ps -o sid= -p $$ 2>/dev/null || cut -d' ' -f6 /proc/$$/stat) -eq $$ ] && echo yes >&3"),
            "yes\n");
}

TEST(ChildProcess, HasNoSignalBlockedOrIgnored) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const auto old = signal(SIGHUP, SIG_IGN);
  const std::string blocked = output_of("sed -n 's/^SigBlk:.//p' /proc/self/status >&3");
  const std::string ignored = output_of("sed -n 's/^SigIgn:.//p' /proc/self/status >&3");
  signal(SIGHUP, old);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(std::stoull(blocked, nullptr, 16), 0u);
  constexpr unsigned long long kOfTheCLibrary = 0b11ULL << 31;  // 32 and 33
  EXPECT_EQ(std::stoull(ignored, nullptr, 16) & ~kOfTheCLibrary, 0u);
}

TEST(ChildProcess, ReportsItsExitStatus) {
  Pipe pipe;
  auto exited = ChildProcess::start("/bin/sh", {"-c", "exit 3"}, pipe.write_end.get()).value();
  const auto end = exited.wait_for(kGenerous);
  ASSERT_TRUE(end);
  EXPECT_FALSE(end->was_clean());
  EXPECT_EQ(end->in_words(), "exited with status 3");
  EXPECT_EQ(waitpid(exited.id(), nullptr, WNOHANG), -1);  // no zombie
  EXPECT_EQ(errno, ECHILD);

  auto killed = ChildProcess::start("/bin/sleep", {"1000"}, pipe.write_end.get()).value();
  EXPECT_FALSE(killed.wait_for(std::chrono::milliseconds(0)));
  killed.kill(SIGKILL);
  EXPECT_EQ(killed.wait_for(kGenerous).value().in_words(), "was killed by signal 9 (Killed)");
}

TEST(ChildProcess, ReapedByAnotherWaitHasEnded) {
  Pipe pipe;
  auto child = ChildProcess::start("/bin/true", {}, pipe.write_end.get()).value();
  ASSERT_EQ(waitpid(child.id(), nullptr, 0), child.id());
  const auto end = child.wait_for(kGenerous);
  ASSERT_TRUE(end);
  EXPECT_FALSE(end->was_clean());
  EXPECT_EQ(end->in_words(), "ended with an unknown status: other code in the process collected the status");
}

TEST(ChildProcess, AMissingProgramIsAnError) {
  Pipe pipe;
  const auto child = ChildProcess::start("/nowhere/program", {}, pipe.write_end.get());
  ASSERT_FALSE(child);
  EXPECT_EQ(child.error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(child.error().file(), "/nowhere/program");
}

}  // namespace
}  // namespace cairn::os

// The writer process and its trainer, each killed, stopped and forked at bad moments.
#include "writer/process_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sanitizers.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <set>
#include <string>
#include <system_error>

#include "os/fd.h"
#include "os/process_descriptor.h"
#include "storage/testing/scratch_directory.h"
#include "writer/testing/staged_sample.h"

namespace cairn::writer {
namespace {

using storage::ScratchDirectory;

constexpr std::size_t kLarge = 16'000'000;  // 64 MB: writing takes a while

// The open descriptors of this process, by number and by file.
std::set<std::string> descriptors() {
  std::set<std::string> open;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed_meanwhile;  // a thread of an earlier test may close a descriptor meanwhile
    const std::filesystem::path file = std::filesystem::read_symlink(entry, closed_meanwhile);
    const bool is_of_the_iterator = file.filename() == "fd";
    if (!closed_meanwhile && !is_of_the_iterator) open.insert(entry.path().filename().string() + " " + file.string());
  }
  return open;
}
// The open descriptors that are not in `before`. A comparison of counts would be wrong if a thread of an earlier test
// closed a descriptor meanwhile.
std::set<std::string> descriptors_since(const std::set<std::string>& before) {
  std::set<std::string> since;
  for (const std::string& descriptor : descriptors()) {
    if (!before.contains(descriptor)) since.insert(descriptor);
  }
  return since;
}
bool has_children() { return waitpid(-1, nullptr, WNOHANG) >= 0; }

class ProcessWriters : public testing::Test {
 protected:
  // Orphaned descendants become children of this process, and the destructor finds them.
  ProcessWriters() { prctl(PR_SET_CHILD_SUBREAPER, 1); }
  ~ProcessWriters() override {
    EXPECT_FALSE(has_children());
    EXPECT_EQ(descriptors_since(descriptors_before_), std::set<std::string>{});
  }

 private:
  std::set<std::string> descriptors_before_ = descriptors();
};

// A trainer that can be killed: a child process. Runs `work` with a descriptor for a report, and then hangs.
class Trainer {
 public:
  explicit Trainer(const std::function<void(int report_to)>& work) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    reports_ = os::Fd(ends[0]);
    const os::Fd report_to(ends[1]);
    id_ = fork();
    if (id_ != 0) return;
    work(report_to.get());
    while (true) pause();
  }

  // Waits for the report of `work`: the id of the writer process.
  pid_t wait_for_report() {
    pid_t writer = -1;
    EXPECT_EQ(read(reports_.get(), &writer, sizeof writer), static_cast<ssize_t>(sizeof writer));
    return writer;
  }
  pid_t id() const { return id_; }
  void kill_now(int signal = SIGKILL) {
    ::kill(id_, signal);
    waitpid(id_, nullptr, 0);
  }

 private:
  pid_t id_ = -1;
  os::Fd reports_;
};

// `process` must be a child of this process, or an adopted orphan.
int wait_for_end_of(pid_t process) {
  int status = -1;
  EXPECT_EQ(waitpid(process, &status, 0), process);
  return status;
}

void report(int to, const ProcessWriter& writer) {
  const pid_t id = writer.process_id().value_or(-1);
  if (write(to, &id, sizeof id) != static_cast<ssize_t>(sizeof id)) _exit(9);
}

// In the trainer: carries a save out up to a point, and reports. The trainer then does nothing more.
void save_up_to(const std::filesystem::path& directory, bool staged, int report_to, StagedSample&& sample) {
  static ProcessWriter* const writer = new ProcessWriter();
  auto save = writer->start([](const auto&) {}).value();
  begin_save(*save, sample, directory).value();
  if (staged) {
    sample.stage();
    save->staged().value();
  }
  report(report_to, *writer);
  while (true) pause();
}

TEST_F(ProcessWriters, CompleteASaveOfAKilledTrainer) {
  for (const bool overwrite : {false, true}) {
    const ScratchDirectory scratch;
    if (overwrite) {
      ProcessWriter writer;
      StagedSample old(1);
      ASSERT_TRUE(save_now(writer, old, scratch.path()));
    }
    Trainer trainer([&](int to) { save_up_to(scratch.path(), true, to, StagedSample(2, kLarge)); });
    const pid_t writer = trainer.wait_for_report();
    trainer.kill_now();
    EXPECT_EQ(wait_for_end_of(writer), 0);
    EXPECT_EQ(checkpoint_in(scratch.path()), 2);
  }
}

TEST_F(ProcessWriters, LeaveNoFileOfAnUnstagedSave) {
  const ScratchDirectory scratch;
  Trainer trainer([&](int to) { save_up_to(scratch.path(), false, to, StagedSample(1)); });
  const pid_t writer = trainer.wait_for_report();
  trainer.kill_now();
  EXPECT_EQ(wait_for_end_of(writer), 0);
  EXPECT_EQ(checkpoint_in(scratch.path()), 0);
}

TEST_F(ProcessWriters, EndWithAnIdleTrainer) {
  Trainer trainer([](int to) {
    ProcessWriter writer;
    writer.start_process().value();
    report(to, writer);
    while (true) pause();
  });
  const pid_t writer = trainer.wait_for_report();
  trainer.kill_now();
  EXPECT_EQ(wait_for_end_of(writer), 0);
}

TEST_F(ProcessWriters, EndDespiteAChildOfTheTrainer) {
  int hold[2];
  ASSERT_EQ(pipe2(hold, O_CLOEXEC), 0);
  Trainer trainer([&](int to) {
    ProcessWriter writer;
    writer.start_process().value();
    if (fork() == 0) {  // a child with a longer life than the trainer, for example a data loader
      close(hold[1]);
      char byte;
      (void)!read(hold[0], &byte, 1);
      _exit(0);
    }
    report(to, writer);
    while (true) pause();
  });
  const pid_t writer = trainer.wait_for_report();
  trainer.kill_now();
  EXPECT_EQ(wait_for_end_of(writer), 0);
  close(hold[1]);
  EXPECT_GT(waitpid(-1, nullptr, 0), 0);  // the data loader
  close(hold[0]);
}

TEST_F(ProcessWriters, HaveASessionOfTheirOwn) {
  const ScratchDirectory scratch;
  ProcessWriter writer;
  StagedSample first(1);
  ASSERT_TRUE(save_now(writer, first, scratch.path()));  // the process runs now
  const pid_t id = writer.process_id().value();
  EXPECT_EQ(getsid(id), id);
  ::kill(id, SIGINT);
  ::kill(id, SIGHUP);
  StagedSample second(2);
  ASSERT_TRUE(save_now(writer, second, scratch.path()));
  EXPECT_EQ(writer.process_id(), id);
  EXPECT_EQ(std::filesystem::read_symlink("/proc/" + std::to_string(id) + "/cwd"), "/");
}

TEST_F(ProcessWriters, UnmapAnArenaAfterItsEnd) {
  const ScratchDirectory scratch;
  ProcessWriterOptions options;
  options.deadline = std::chrono::milliseconds(400);  // short, for frequent looks at the process
  ProcessWriter writer(options);
  {
    StagedSample sample(1);
    ASSERT_TRUE(save_now(writer, sample, scratch.path()));
  }
  const std::string maps = "/proc/" + std::to_string(writer.process_id().value()) + "/maps";
  const auto has_arena = [&maps] {
    std::ifstream file(maps);
    const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    return text.find("memfd:cairn-arena") != std::string::npos;
  };
  const auto until = std::chrono::steady_clock::now() + kGenerous;
  while (has_arena() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  EXPECT_FALSE(has_arena());
}

TEST_F(ProcessWriters, NextSaveWorksAfterAKill) {
  const ScratchDirectory scratch;
  ProcessWriter writer;
  for (std::uint64_t number = 1; number <= 2; ++number) {
    StagedSample sample(number, kLarge);
    End end;
    const auto save = writer.start(end.callback()).value();
    ASSERT_TRUE(begin_save(*save, sample, scratch.path()));
    if (number == 2) {
      sample.stage();
      ASSERT_TRUE(save->staged());
    }
    ::kill(writer.process_id().value(), SIGKILL);
    const auto ended = end.wait();
    ASSERT_FALSE(ended);
    EXPECT_EQ(ended.error().code(), ErrorCode::kUnavailable);
    EXPECT_NE(std::string(ended.error().what()).find("signal 9"), std::string::npos) << ended.error().what();
    EXPECT_EQ(checkpoint_in(scratch.path()), 0);  // the save's leftovers have been removed
    EXPECT_FALSE(save->staged());
    EXPECT_EQ(sample.arena().use_count(), 1);
  }
  StagedSample next(3);
  const auto saved = save_now(writer, next, scratch.path());
  ASSERT_TRUE(saved) << saved.error().what();
  EXPECT_EQ(checkpoint_in(scratch.path()), 3);
}

TEST_F(ProcessWriters, KillClosesFilesOfAKeptSave) {
  const ScratchDirectory scratch;
  ProcessWriter writer;
  StagedSample sample(1);
  ASSERT_TRUE(save_now(writer, sample, scratch.path()));
  const std::set<std::string> before = descriptors();
  std::vector<std::unique_ptr<WriterSave>> kept;
  std::uint64_t number = 2;
  for (; number <= 4; ++number) {
    StagedSample dropped(number);
    End end;
    kept.push_back(writer.start(end.callback()).value());
    ASSERT_TRUE(begin_save(*kept.back(), dropped, scratch.path()));
    ::kill(writer.process_id().value(), SIGKILL);
    ASSERT_FALSE(end.wait());
  }
  {
    StagedSample next(number);
    ASSERT_TRUE(save_now(writer, next, scratch.path()));
  }
  EXPECT_EQ(descriptors().size(), before.size());  // the descriptors of the current writer process
  // Without effect: the processes are gone.
  for (const auto& save : kept) save->abandon(Error(ErrorCode::kCancelled, "too late"));
}

TEST_F(ProcessWriters, LossReportedWithoutOpenFiles) {
  const ScratchDirectory scratch;
  ProcessWriter writer;
  StagedSample lost(1);
  const std::set<std::string> before = descriptors();
  std::promise<std::set<std::string>> descriptors;
  const auto save = writer.start([&](const auto&) { descriptors.set_value(descriptors_since(before)); }).value();
  ASSERT_TRUE(begin_save(*save, lost, scratch.path()));
  ::kill(writer.process_id().value(), SIGKILL);
  EXPECT_EQ(descriptors.get_future().get(), std::set<std::string>{});
}

TEST_F(ProcessWriters, DeathFailsTheOtherRanksAtOnce) {
  const ScratchDirectory scratch;
  ProcessWriter coordinator;
  ProcessWriter other;
  StagedSample first(1, 100'000, {0, 2, 0});
  StagedSample second(1, 100'000, {1, 2, 0});
  End first_end;
  End second_end;
  const auto first_save = coordinator.start(first_end.callback()).value();
  const auto second_save = other.start(second_end.callback()).value();
  const auto ticket = first_save->claim(first.claim_request(scratch.path()), {}).value();
  ASSERT_TRUE(first_save->begin(first.request(scratch.path(), ticket)));
  ASSERT_TRUE(second_save->begin(second.request(scratch.path(), ticket)));
  first.stage();
  ASSERT_TRUE(first_save->staged());
  ::kill(other.process_id().value(), SIGKILL);
  EXPECT_EQ(second_end.wait().error().code(), ErrorCode::kUnavailable);
  const auto ended = first_end.wait();
  ASSERT_FALSE(ended);
  ASSERT_FALSE(ended.error().causes().empty());
  EXPECT_EQ(ended.error().causes().front().rank(), 1);
  EXPECT_EQ(checkpoint_in(scratch.path()), 0);
}

TEST_F(ProcessWriters, DeathBeforeTheSaveBegins) {
  const ScratchDirectory scratch;
  ProcessWriter coordinator;
  ProcessWriter other;
  StagedSample first(1, 100'000, {0, 2, 0});
  StagedSample second(1, 100'000, {1, 2, 0});
  End first_end;
  End second_end;
  const auto first_save = coordinator.start(first_end.callback()).value();
  const auto second_save = other.start(second_end.callback()).value();
  const auto ticket = first_save->claim(first.claim_request(scratch.path()), {}).value();
  ::kill(other.process_id().value(), SIGKILL);
  EXPECT_EQ(second_end.wait().error().code(), ErrorCode::kUnavailable);
  ASSERT_TRUE(first_save->begin(first.request(scratch.path(), ticket)));
  EXPECT_TRUE(second_save->begin(second.request(scratch.path(), ticket)));  // `ended` has already reported the failure
  first.stage();
  ASSERT_TRUE(first_save->staged());
  const auto ended = first_end.wait();
  ASSERT_FALSE(ended);
  ASSERT_FALSE(ended.error().causes().empty());
  EXPECT_EQ(ended.error().causes().front().rank(), 1);
  EXPECT_EQ(checkpoint_in(scratch.path()), 0);
}

TEST_F(ProcessWriters, SilentWriterIsKilled) {
  const ScratchDirectory scratch;
  ProcessWriterOptions options;
  options.deadline = std::chrono::milliseconds(300);
  ProcessWriter writer(options);
  StagedSample sample(1);
  End end;
  const auto save = writer.start(end.callback()).value();
  const auto ticket = save->claim(sample.claim_request(scratch.path()), {}).value();
  SaveRequest request = sample.request(scratch.path(), ticket);
  request.deadlines.progress = options.deadline;
  ::kill(writer.process_id().value(), SIGSTOP);
  ASSERT_TRUE(save->begin(request));
  const auto ended = end.wait();
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code(), ErrorCode::kUnavailable);
  EXPECT_NE(std::string(ended.error().what()).find("killed"), std::string::npos) << ended.error().what();
  StagedSample next(2);
  ASSERT_TRUE(save_now(writer, next, scratch.path()));
  EXPECT_EQ(checkpoint_in(scratch.path()), 2);  // the save has removed the first save's leftovers
}

TEST_F(ProcessWriters, CompleteStagedSavesOnSigterm) {
  const ScratchDirectory scratch;
  ProcessWriter writer;
  StagedSample staged(1, kLarge);
  StagedSample half(2);
  End staged_end;
  End half_end;
  const auto staged_save = writer.start(staged_end.callback()).value();
  ASSERT_TRUE(begin_save(*staged_save, staged, scratch.path() / "staged"));
  const auto half_save = writer.start(half_end.callback()).value();
  ASSERT_TRUE(begin_save(*half_save, half, scratch.path() / "half"));
  staged.stage();
  ASSERT_TRUE(staged_save->staged());
  while (staged_save->progress().phase == commit::ProgressTracker::Phase::kStaging && !staged_end.is_here()) {
    std::this_thread::yield();  // until the process has received the message
  }
  ::kill(writer.process_id().value(), SIGTERM);
  const auto half_ended = half_end.wait();
  ASSERT_FALSE(half_ended);
  EXPECT_NE(std::string(half_ended.error().what()).find("SIGTERM"), std::string::npos) << half_ended.error().what();
  EXPECT_TRUE(staged_end.wait());
  EXPECT_EQ(checkpoint_in(scratch.path() / "staged"), 1);
  EXPECT_EQ(checkpoint_in(scratch.path() / "half"), 0);
}

TEST_F(ProcessWriters, NoGraceWithdrawsStagedSaves) {
  const ScratchDirectory scratch;
  ProcessWriterOptions options;
  options.grace = std::chrono::milliseconds(0);
  ProcessWriter writer(options);
  StagedSample sample(1, 100'000, {0, 2, 0});  // rank 1 never comes
  End end;
  const auto save = writer.start(end.callback()).value();
  ASSERT_TRUE(begin_save(*save, sample, scratch.path()));
  sample.stage();
  ASSERT_TRUE(save->staged());
  while (save->progress().phase != commit::ProgressTracker::Phase::kWaiting) std::this_thread::yield();
  ::kill(writer.process_id().value(), SIGTERM);
  EXPECT_FALSE(end.wait());
  EXPECT_EQ(checkpoint_in(scratch.path()), 0);
}

TEST_F(ProcessWriters, ForkedChildStartsItsOwnWriter) {
  if (kThreadSanitized) {
    GTEST_SKIP() << "the thread sanitizer does not bear threads in a child made by fork";
  }
  const ScratchDirectory scratch;
  ProcessWriter writer;
  StagedSample sample(1);
  End end;
  auto save = writer.start(end.callback()).value();
  ASSERT_TRUE(begin_save(*save, sample, scratch.path() / "parent"));
  const pid_t child = fork();
  if (child == 0) {
    if (save->staged() || save->begin({}) || save->claim({}, {})) _exit(1);
    save->abandon(Error(ErrorCode::kCancelled, "by the child"));
    save.reset();
    StagedSample own(2);
    if (!save_now(writer, own, scratch.path() / "child")) _exit(2);
    writer.~ProcessWriter();
    _exit(has_children() ? 3 : 0);
  }
  EXPECT_EQ(wait_for_end_of(child), 0);
  sample.stage();
  ASSERT_TRUE(save->staged());
  EXPECT_TRUE(end.wait());
  EXPECT_EQ(checkpoint_in(scratch.path() / "parent"), 1);
  EXPECT_EQ(checkpoint_in(scratch.path() / "child"), 2);
}

TEST_F(ProcessWriters, ForkedChildMayEndHarmlessly) {
  const ScratchDirectory scratch;
  auto writer = std::make_unique<ProcessWriter>();
  StagedSample sample(1);
  End end;
  auto save = writer->start(end.callback()).value();
  ASSERT_TRUE(begin_save(*save, sample, scratch.path()));
  const pid_t child = fork();
  if (child == 0) {
    save.reset();
    writer.reset();
    _exit(0);
  }
  EXPECT_EQ(wait_for_end_of(child), 0);
  sample.stage();
  ASSERT_TRUE(save->staged());
  EXPECT_TRUE(end.wait());
}

TEST_F(ProcessWriters, NamesAMissingExecutable) {
  ProcessWriterOptions options;
  options.executable = "/nowhere/cairn-writer";
  ProcessWriter writer(options);
  const auto save = writer.start([](const auto&) {});
  ASSERT_FALSE(save);
  EXPECT_EQ(save.error().code(), ErrorCode::kUnavailable);
  EXPECT_NE(std::string(save.error().what()).find("/nowhere/cairn-writer"), std::string::npos) << save.error().what();
}

TEST_F(ProcessWriters, AnotherProgramFailsTheSave) {
  for (const char* const program : {"/bin/true", "/bin/false"}) {
    ProcessWriterOptions options;
    options.executable = program;
    ProcessWriter writer(options);
    StagedSample sample(1);
    End end;
    const auto save = writer.start(end.callback());
    if (!save) continue;  // the process has already ended
    EXPECT_FALSE((*save)->claim(sample.claim_request("/nowhere"), {}));
    EXPECT_NE(std::string(end.wait().error().what()).find("exited with status"), std::string::npos);
  }
}

TEST_F(ProcessWriters, StartedByHandPrintTheirPurpose) {
  const pid_t child = fork();
  if (child == 0) {
    close(3);
    const int silent = ::open("/dev/null", O_RDWR);
    dup2(silent, 2);
    if (silent == 3) close(3);
    const auto self = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "cairn-writer";
    execl(self.c_str(), self.c_str(), nullptr);
    _exit(9);
  }
  const int status = wait_for_end_of(child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 2);
}

}  // namespace
}  // namespace cairn::writer

// Behaviour common to both writers.
#include "writer/save_writer.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <string>
#include <thread>

#include "storage/testing/scratch_directory.h"
#include "writer/process_writer.h"
#include "writer/testing/staged_sample.h"
#include "writer/thread_writer.h"

namespace cairn::writer {
namespace {

using storage::ScratchDirectory;

class Writers : public testing::TestWithParam<bool> {
 protected:
  std::unique_ptr<SaveWriter> make(const os::Priority& priority = {}) const {
    if (GetParam()) return std::make_unique<ProcessWriter>(ProcessWriterOptions{.priority = priority});
    return std::make_unique<ThreadWriter>(priority);
  }
  // The process that writes.
  static pid_t process_of(const SaveWriter& writer) {
    if (!GetParam()) return getpid();
    return dynamic_cast<const ProcessWriter&>(writer).process_id().value();
  }
};

// The number of threads of the process with lowered priority.
int threads_behind(pid_t process, int nice) {
  constexpr int kThread = 1;  // IOPRIO_WHO_PROCESS
  constexpr long kIdle = 3L << 13;
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/task")) {
    const int thread = std::stoi(entry.path().filename());
    const bool behind = getpriority(PRIO_PROCESS, static_cast<id_t>(thread)) == nice &&
                        sched_getscheduler(thread) == SCHED_BATCH &&
                        (syscall(SYS_ioprio_get, kThread, thread) & kIdle) == kIdle;
    count += behind ? 1 : 0;
  }
  return count;
}

INSTANTIATE_TEST_SUITE_P(SaveWriter, Writers, testing::Bool(),
                         [](const auto& tested) { return tested.param ? "Process" : "Thread"; });

TEST_P(Writers, SaveTheStagedState) {
  const ScratchDirectory scratch;
  const auto writer = make();
  for (std::uint64_t number = 1; number <= 3; ++number) {
    StagedSample sample(number);
    const auto report = save_now(*writer, sample, scratch.path());
    ASSERT_TRUE(report) << report.error().what();
    EXPECT_GE(report->bytes_written, 400'000u);
    EXPECT_TRUE(report->warnings.empty());
    EXPECT_EQ(checkpoint_in(scratch.path()), static_cast<int>(number));
  }
}

// The layout of a coordinator grows with the chunks of all ranks.
TEST_P(Writers, SendMetadataInSeveralMessages) {
  const ScratchDirectory scratch;
  const auto writer = make();
  constexpr std::size_t kKeyBytes = std::size_t{3} << 20;
  StagedSample sample(1, 100'000, {}, kKeyBytes);
  const auto report = save_now(*writer, sample, scratch.path());
  ASSERT_TRUE(report) << report.error().what();
  EXPECT_EQ(checkpoint_in(scratch.path()), 1);
  EXPECT_GT(std::filesystem::file_size(scratch.path() / ".metadata"), kKeyBytes);
}

TEST_P(Writers, TakeManySavesOutOfOneArena) {
  const ScratchDirectory scratch;
  const auto writer = make();
  StagedSample first(1, 1000);
  ASSERT_TRUE(writer->prepare(first.arena()));
  ASSERT_TRUE(save_now(*writer, first, scratch.path()));
  StagedSample larger(2, 3'000'000);  // the arena grows
  End end;
  const auto save = writer->start(end.callback()).value();
  const auto ticket = save->claim(larger.claim_request(scratch.path()), {}).value();
  SaveRequest request = larger.request(scratch.path(), ticket);
  ASSERT_TRUE(first.arena()->fit(request.layout->arena_bytes));
  larger.stage();
  std::memcpy(first.arena()->bytes().data(), larger.arena()->bytes().data(), request.layout->arena_bytes);
  request.arena = first.arena();
  ASSERT_TRUE(save->begin(request));
  ASSERT_TRUE(save->staged());
  const auto report = end.wait();
  ASSERT_TRUE(report) << report.error().what();
  EXPECT_EQ(checkpoint_in(scratch.path()), 2);
}

TEST_P(Writers, ReportTheProgressOfASave) {
  const ScratchDirectory scratch;
  const auto writer = make();
  StagedSample sample(1);
  End end;
  const auto save = writer->start(end.callback()).value();
  ASSERT_TRUE(begin_save(*save, sample, scratch.path()));
  EXPECT_EQ(save->progress().phase, commit::ProgressTracker::Phase::kStaging);
  sample.stage();
  ASSERT_TRUE(save->staged());
  const auto report = end.wait();
  ASSERT_TRUE(report);
  EXPECT_EQ(save->progress().phase, commit::ProgressTracker::Phase::kEnded);
  EXPECT_GE(save->progress().bytes_written, 400'000u);
  EXPECT_LE(save->progress().bytes_written, report->bytes_written);  // report->bytes_written includes `.metadata`
  EXPECT_EQ(save->progress().bytes_total, save->progress().bytes_written);
  EXPECT_FALSE(save->staged());
}

// Permissions of files and directories, by path below `root`.
std::map<std::string, mode_t> permissions_below(const std::filesystem::path& root) {
  std::map<std::string, mode_t> found;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    struct stat status {};
    EXPECT_EQ(lstat(entry.path().c_str(), &status), 0);
    found[std::filesystem::relative(entry.path(), root)] = status.st_mode & 07777;
  }
  return found;
}

TEST_P(Writers, ApplyTheUmaskOfEachSave) {
  const mode_t own = umask(027);  // of this process, and of the writer process at its start
  const auto writer = make();
  for (const mode_t asked : {077u, 002u, 027u}) {
    const ScratchDirectory scratch;
    StagedSample sample(1);
    End end;
    const auto save = writer->start(end.callback()).value();
    ClaimRequest claim = sample.claim_request(scratch.path() / "runs" / "step");
    claim.umask = asked;
    const auto ticket = save->claim(claim, {}).value();
    SaveRequest request = sample.request(claim.directory, ticket);
    request.umask = asked;
    ASSERT_TRUE(save->begin(request));
    sample.stage();
    ASSERT_TRUE(save->staged());
    const auto report = end.wait();
    ASSERT_TRUE(report) << report.error().what();
    const auto found = permissions_below(scratch.path());
    EXPECT_EQ(found.at("runs"), 0777u & ~asked);
    EXPECT_EQ(found.at("runs/step"), 0777u & ~asked);
    EXPECT_EQ(found.at("runs/step/.metadata"), 0666u & ~asked);
    EXPECT_EQ(found.size(), 4u);
    for (const auto& [name, bits] : found) {
      if (name.ends_with(".distcp")) EXPECT_EQ(bits, 0666u & ~asked) << name;
    }
  }
  EXPECT_EQ(umask(own), 027u) << "the umask of the process is left alone";
}

TEST_P(Writers, OverlapSavesOfTwoDirectories) {
  const ScratchDirectory scratch;
  const auto writer = make();
  StagedSample slow(1);
  StagedSample quick(2);
  End slow_end;
  const auto save = writer->start(slow_end.callback()).value();
  ASSERT_TRUE(begin_save(*save, slow, scratch.path() / "slow"));
  ASSERT_TRUE(save_now(*writer, quick, scratch.path() / "quick"));  // although the slow save is not staged
  EXPECT_FALSE(slow_end.is_here());
  slow.stage();
  ASSERT_TRUE(save->staged());
  ASSERT_TRUE(slow_end.wait());
  EXPECT_EQ(checkpoint_in(scratch.path() / "slow"), 1);
  EXPECT_EQ(checkpoint_in(scratch.path() / "quick"), 2);
}

TEST_P(Writers, CommitInOrderInOneDirectory) {
  const ScratchDirectory scratch;
  const auto writer = make();
  StagedSample first(1);
  StagedSample second(2);
  End first_end;
  End second_end;
  const auto first_save = writer->start(first_end.callback()).value();
  const auto second_save = writer->start(second_end.callback()).value();
  ASSERT_TRUE(begin_save(*first_save, first, scratch.path()));
  ASSERT_TRUE(begin_save(*second_save, second, scratch.path() / "." / ""));
  second.stage();
  ASSERT_TRUE(second_save->staged());
  while (second_save->progress().phase != commit::ProgressTracker::Phase::kCommitting) std::this_thread::yield();
  EXPECT_FALSE(second_end.is_here());
  first.stage();
  ASSERT_TRUE(first_save->staged());
  EXPECT_TRUE(first_end.wait());
  EXPECT_TRUE(second_end.wait());  // if the second save had committed first, the first save would be superseded
  EXPECT_EQ(checkpoint_in(scratch.path()), 2);
}

TEST_P(Writers, StartTheNextAfterAFailure) {
  const ScratchDirectory scratch;
  const auto writer = make();
  StagedSample first(1);
  StagedSample second(2);
  End first_end;
  auto first_save = writer->start(first_end.callback()).value();
  ASSERT_TRUE(begin_save(*first_save, first, scratch.path()));
  End second_end;
  const auto second_save = writer->start(second_end.callback()).value();
  ASSERT_TRUE(begin_save(*second_save, second, scratch.path()));
  second.stage();
  ASSERT_TRUE(second_save->staged());
  first_save.reset();
  EXPECT_EQ(first_end.wait().error().code(), ErrorCode::kCancelled);
  EXPECT_TRUE(second_end.wait());
  EXPECT_EQ(checkpoint_in(scratch.path()), 2);
}

TEST_P(Writers, LeaveNoFileOfAnAbandonedSave) {
  const ScratchDirectory scratch;
  const auto writer = make();
  for (int steps = 0; steps <= 2; ++steps) {
    StagedSample sample(1);
    End end;
    const auto save = writer->start(end.callback()).value();
    if (steps >= 1) {
      const auto ticket = save->claim(sample.claim_request(scratch.path()), {}).value();
      if (steps >= 2) ASSERT_TRUE(save->begin(sample.request(scratch.path(), ticket)));
    }
    save->abandon(Error(ErrorCode::kInvalidArgument, "a tensor that can't be copied").key("weight"));
    save->abandon(Error(ErrorCode::kInternal, "again"));
    const auto ended = end.wait();
    ASSERT_FALSE(ended);
    EXPECT_NE(std::string(ended.error().what()).find("weight"), std::string::npos) << ended.error().what();
    EXPECT_EQ(names_in(scratch.path()), std::vector<std::string>());
    EXPECT_EQ(sample.arena().use_count(), 1);
  }
}

TEST_P(Writers, WaitForStagedSavesAtClose) {
  const ScratchDirectory scratch;
  StagedSample staged(1);
  StagedSample half(2);
  End staged_end;
  End half_end;
  {
    const auto writer = make();
    const auto save = writer->start(staged_end.callback()).value();
    ASSERT_TRUE(begin_save(*save, staged, scratch.path() / "staged"));
    staged.stage();
    ASSERT_TRUE(save->staged());
    const auto half_save = writer->start(half_end.callback()).value();
    ASSERT_TRUE(begin_save(*half_save, half, scratch.path() / "half"));
  }
  ASSERT_TRUE(staged_end.is_here() && half_end.is_here());
  EXPECT_TRUE(staged_end.wait());
  EXPECT_EQ(half_end.wait().error().code(), ErrorCode::kCancelled);
  EXPECT_EQ(checkpoint_in(scratch.path() / "staged"), 1);
  EXPECT_EQ(checkpoint_in(scratch.path() / "half"), 0);
}

TEST_P(Writers, ReportAStorageThatFails) {
  const ScratchDirectory scratch;
  const auto writer = make();
  StagedSample sample(1);
  End end;
  const auto save = writer->start(end.callback()).value();
  ASSERT_TRUE(begin_save(*save, sample, scratch.path() / "gone"));
  // The writer may be making its files in the directory meanwhile.
  for (std::error_code busy; std::filesystem::exists(scratch.path() / "gone");) {
    std::filesystem::remove_all(scratch.path() / "gone", busy);
  }
  sample.stage();
  (void)save->staged();  // the save may have failed before
  EXPECT_FALSE(end.wait());
  StagedSample next(2);
  EXPECT_TRUE(save_now(*writer, next, scratch.path() / "next"));
}

TEST_P(Writers, ReportADirectoryThatCantBeMade) {
  const ScratchDirectory scratch;
  const auto writer = make();
  StagedSample sample(1);
  End end;
  auto save = writer->start(end.callback()).value();
  const auto claimed = save->claim(sample.claim_request("/proc/nowhere/checkpoint"), {});
  ASSERT_FALSE(claimed);
  EXPECT_NE(std::string(claimed.error().what()).find("/proc/nowhere"), std::string::npos) << claimed.error().what();
  save.reset();
  EXPECT_FALSE(end.wait());
}

TEST_P(Writers, ReportAFullDisk) {
  struct statvfs disk {};
  const std::filesystem::path memory = "/dev/shm";
  if (statvfs(memory.c_str(), &disk) != 0 || disk.f_frsize * disk.f_blocks > (std::uint64_t{1} << 40)) GTEST_SKIP();
  const std::filesystem::path directory = memory / ("cairn-full-" + std::to_string(getpid()));
  const auto writer = make();
  // Larger than the file system. The memory is never touched: the file's size is reserved before the first write.
  StagedSample sample(1, disk.f_frsize * disk.f_blocks / sizeof(float) + 1'000'000);
  End end;
  auto save = writer->start(end.callback()).value();
  const auto begun = begin_save(*save, sample, directory);
  ASSERT_TRUE(begun) << begun.error().what();
  (void)save->staged();  // the save may have failed before
  const auto ended = end.wait();
  EXPECT_EQ(names_in(directory), std::vector<std::string>());
  std::filesystem::remove_all(directory);
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code(), ErrorCode::kNoSpace) << ended.error().what();
}

TEST_P(Writers, RefuseBytesBeforeTheSaveBegins) {
  const auto writer = make();
  End end;
  auto save = writer->start(end.callback()).value();
  EXPECT_EQ(save->staged().error().code(), ErrorCode::kInvalidArgument);
  save.reset();
  EXPECT_FALSE(end.wait());
}

TEST_P(Writers, EndASaveThatBeginsUnclaimed) {
  const ScratchDirectory scratch;
  const auto writer = make();
  StagedSample sample(1);
  End end;
  const auto save = writer->start(end.callback()).value();
  ASSERT_TRUE(save->begin(sample.request(scratch.path(), {sample.identity(), true})));
  const auto ended = end.wait();
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code(), ErrorCode::kInvalidArgument) << ended.error().what();
}

TEST_P(Writers, GiveUpAnAbandonedClaim) {
  const ScratchDirectory scratch;
  const auto coordinator = make();
  const auto other = make();
  const StagedSample claimed(1, 100'000, {1, 2, 1});
  StagedSample begun(1, 100'000, {0, 2, 1});
  End first_end;
  End second_end;
  const auto first_save = coordinator->start(first_end.callback()).value();
  const auto second_save = other->start(second_end.callback()).value();
  ClaimRequest request = claimed.claim_request(scratch.path());
  request.deadlines.progress = std::chrono::seconds(3);
  StagedSample warm(2);
  ASSERT_TRUE(save_now(*other, warm, ScratchDirectory().path()));  // within the deadline
  const auto ticket = first_save->claim(request, {}).value();
  ASSERT_TRUE(second_save->begin(begun.request(scratch.path(), ticket)));
  begun.stage();
  ASSERT_TRUE(second_save->staged());
  const auto first_ended = first_end.wait();
  ASSERT_FALSE(first_ended);
  EXPECT_EQ(first_ended.error().code(), ErrorCode::kUnavailable) << first_ended.error().what();
  const auto second_ended = second_end.wait();
  ASSERT_FALSE(second_ended);
  // The error names the rank that was waited for.
  EXPECT_EQ(second_ended.error().rank(), 1) << second_ended.error().what();
  EXPECT_EQ(names_in(scratch.path()), std::vector<std::string>());
}

TEST_P(Writers, StandBackBehindARunningTrainer) {
  const ScratchDirectory scratch;
  const int niceness = getpriority(PRIO_PROCESS, 0);
  if (niceness > 12 || sched_getscheduler(0) != SCHED_OTHER) GTEST_SKIP() << "this process stands back itself";
  const auto writer = make({.nice = 7, .io_class = os::IoClass::kIdle});
  StagedSample sample(1, 100'000, {0, 2, 0});  // rank 1 never comes
  End end;
  const auto save = writer->start(end.callback()).value();
  const auto ticket = save->claim(sample.claim_request(scratch.path()), {}).value();
  const auto behind = [&] { return threads_behind(process_of(*writer), niceness + 7); };
  SaveRequest request = sample.request(scratch.path(), ticket);
  request.deadlines.progress = std::chrono::seconds(3);
  ASSERT_TRUE(save->begin(request));
  EXPECT_EQ(behind(), 0);
  sample.stage();
  ASSERT_TRUE(save->staged());
  int count = 0;
  while ((count = behind()) == 0 && !end.is_here()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_GE(count, 1);
  EXPECT_FALSE(end.wait());
}

TEST_P(Writers, RefuseFilesBeyondTheArena) {
  const ScratchDirectory scratch;
  const auto writer = make();
  StagedSample sample(1);
  End end;
  const auto save = writer->start(end.callback()).value();
  const auto ticket = save->claim(sample.claim_request(scratch.path()), {}).value();
  SaveRequest beyond = sample.request(scratch.path(), ticket);
  auto layout = std::make_shared<StagedLayout>(*beyond.layout);
  layout->files.front().arena_offset = 1 << 20;
  layout->id = 4711;
  beyond.layout = layout;
  ASSERT_TRUE(save->begin(beyond));
  const auto ended = end.wait();
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code(), ErrorCode::kInvalidArgument) << ended.error().what();
  EXPECT_EQ(names_in(scratch.path()), std::vector<std::string>());
}

TEST_P(Writers, MeetWithAnotherRanksWriter) {
  const ScratchDirectory scratch;
  const auto coordinator = make();
  const auto other = make();
  StagedSample first(1, 100'000, {0, 2, 0});
  StagedSample second(1, 100'000, {1, 2, 0});
  End first_end;
  End second_end;
  const auto first_save = coordinator->start(first_end.callback()).value();
  const auto second_save = other->start(second_end.callback()).value();
  const auto ticket = first_save->claim(first.claim_request(scratch.path()), {}).value();
  ASSERT_TRUE(first_save->begin(first.request(scratch.path(), ticket)));
  ASSERT_TRUE(second_save->begin(second.request(scratch.path(), ticket)));
  first.stage();
  second.stage();
  ASSERT_TRUE(first_save->staged());
  ASSERT_TRUE(second_save->staged());
  for (End* end : {&first_end, &second_end}) {
    const auto report = end->wait();
    ASSERT_TRUE(report) << report.error().what();
  }
  EXPECT_EQ(checkpoint_in(scratch.path()), 1);
}

}  // namespace
}  // namespace cairn::writer

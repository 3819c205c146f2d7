#include <cairn/checkpoint.h>
#include <cairn/inspect.h>
#include <cairn/save.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "storage/raw_rates.h"
#include "storage/testing/hanging_reads.h"
#include "storage/testing/refused_calls.h"
#include "storage/testing/scratch_directory.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using storage::RefusedCall;
using storage::run_with_refused;

constexpr std::uint64_t kTrialBytes = std::uint64_t{8} << 20;

class MachineReport : public testing::Test {
 protected:
  MachineReport() { std::ofstream(directory_ / "own") << "untouched"; }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    std::error_code ignored;  // a thread that was given up may remove its folder meanwhile
    for (fs::directory_iterator it(directory_, ignored); it != fs::end(it); it.increment(ignored)) {
      names.push_back(it->path().filename().string());
    }
    return names;
  }

  Result<std::vector<MachineFinding>> examine() const {
    return examine_machine(directory_, {.trial_bytes = kTrialBytes});
  }

  // With the calls refused. Empty if the kernel has no filters.
  std::vector<MachineFinding> examine_without(const std::vector<RefusedCall>& calls) const {
    std::vector<MachineFinding> findings;
    run_with_refused(calls, [&] { findings = examine().value(); });
    EXPECT_EQ(names(), std::vector<std::string>{"own"});
    return findings;
  }

  static MachineFinding of(const std::vector<MachineFinding>& findings, const std::string& subject) {
    const auto found = std::find_if(findings.begin(), findings.end(),
                                    [&](const MachineFinding& finding) { return finding.subject == subject; });
    EXPECT_NE(found, findings.end()) << subject;
    return found == findings.end() ? MachineFinding{} : *found;
  }

  static bool has_obstacle(const std::vector<MachineFinding>& findings) {
    return std::any_of(findings.begin(), findings.end(), [](const MachineFinding& one) { return one.is_obstacle; });
  }

  storage::ScratchDirectory scratch_;
  fs::path directory_ = scratch_.path();
};

TEST_F(MachineReport, TheDirectoryIsLeftAsFound) {
  const auto findings = examine().value();
  EXPECT_EQ(names(), std::vector<std::string>{"own"});
  EXPECT_FALSE(has_obstacle(findings));
  for (const MachineFinding& finding : findings) {
    EXPECT_FALSE(finding.found.empty()) << finding.subject;
    EXPECT_FALSE(finding.use.empty()) << finding.subject;
  }
  for (const char* const subject : {"disk_write", "disk_read", "memory_copy"}) {
    EXPECT_GT(of(findings, subject).number.value_or(0), 0U) << subject;
    EXPECT_EQ(of(findings, subject).unit, MachineFinding::Unit::kBytesPerSecond) << subject;
  }
}

TEST_F(MachineReport, RefusedCallsNameTheSubstitute) {
  constexpr unsigned kNewFlags = 2;
  constexpr unsigned kOpenFlags = 2;
  const auto findings = examine_without({{SYS_renameat2, EINVAL},
                                         {SYS_flock, ENOLCK},
                                         {SYS_fcntl, EINVAL, kNewFlags, O_DIRECT},
                                         {SYS_openat, EOPNOTSUPP, kOpenFlags, O_TMPFILE & ~O_DIRECTORY},
                                         {SYS_io_uring_setup, EPERM}});
  if (findings.empty()) GTEST_SKIP() << "no filters of system calls";
  EXPECT_FALSE(has_obstacle(findings));
  EXPECT_EQ(of(findings, "rename_noreplace").found, "fails: Invalid argument (errno 22)");
  EXPECT_EQ(of(findings, "rename_noreplace").use, "data files get their names by hard links");
  EXPECT_EQ(of(findings, "hard_link").use, "used in place of rename_noreplace");
  EXPECT_EQ(of(findings, "lock").use, "saves work without a lock: two jobs may commit at the same time");
  EXPECT_EQ(of(findings, "direct_io").use, "files are read and written through the page cache");
  EXPECT_NE(of(findings, "disk_write").found.find("through the page cache"), std::string::npos);
  EXPECT_EQ(of(findings, "io_uring").found, "forbidden: Operation not permitted (errno 1)");
}

TEST_F(MachineReport, ReadOnlyDirectoryIsAnObstacle) {
  const auto findings = examine_without({{SYS_mkdir, EACCES}, {SYS_mkdirat, EACCES}});
  if (findings.empty()) GTEST_SKIP() << "no filters of system calls";
  EXPECT_TRUE(of(findings, "write").is_obstacle);
  EXPECT_EQ(of(findings, "write").found, "fails: Permission denied (errno 13)");
  EXPECT_EQ(of(findings, "write").use, "only loads work");
}

TEST_F(MachineReport, ARefusedSyncIsAnObstacle) {
  const auto findings = examine_without({{SYS_fsync, EINVAL}});
  if (findings.empty()) GTEST_SKIP() << "no filters of system calls";
  EXPECT_TRUE(of(findings, "sync").is_obstacle);
}

TEST_F(MachineReport, AStorageThatHangsIsAnObstacle) {
  {
    const storage::HangingReads hanging(" (deleted)");
    constexpr std::chrono::milliseconds kShortWait{300};
    const auto findings = examine_machine(directory_, {.trial_bytes = kTrialBytes,
                                                       .deadlines = {kShortWait, std::chrono::minutes(1), kShortWait}})
                              .value();
    EXPECT_TRUE(of(findings, "storage").is_obstacle);
    EXPECT_NE(of(findings, "storage").found.find("the storage hangs: reading '.cairn-doctor-"), std::string::npos)
        << of(findings, "storage").found;
    EXPECT_FALSE(of(findings, "memory_copy").found.empty());
    EXPECT_EQ(names(), std::vector<std::string>{"own"});
  }
}

TEST_F(MachineReport, AnInterruptionLeavesNothing) {
  int calls = 0;
  const auto result =
      examine_machine(directory_, {.trial_bytes = kTrialBytes, .interrupted = [&calls] { return ++calls > 1; }});
  EXPECT_EQ(result.error().code(), ErrorCode::kCancelled);
  while (names() != std::vector<std::string>{"own"}) std::this_thread::yield();
}

TEST_F(MachineReport, RefusesNoDirectoryAndAFile) {
  EXPECT_EQ(examine_machine(directory_ / "missing").error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(examine_machine(directory_ / "own").error().code(), ErrorCode::kInvalidArgument);
}

TEST_F(MachineReport, MeasuresLikeSavesAndLoads) {
  EXPECT_EQ(storage::kRawRequestsInFlight, SaveOptions().thread_count);
  EXPECT_EQ(storage::kRawRequestsInFlight, LoadOptions().thread_count);
}

}  // namespace
}  // namespace cairn

#include "commit/job_identity.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace cairn::commit {
namespace {

TEST(JobIdentity, IsNewInAForkedChild) {
  const SaveIdentity first = next_save_identity();
  const SaveIdentity second = next_save_identity();
  EXPECT_EQ(second.job_id, first.job_id);
  EXPECT_EQ(second.save_number, first.save_number + 1);
  const pid_t child = fork();
  if (child == 0) {
    const SaveIdentity mine = next_save_identity();
    const bool is_new = mine.job_id != first.job_id && mine.job_start > first.job_start && mine.save_number == 1;
    _exit(is_new ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(JobIdentity, ComesAfterAnOpenedCheckpoint) {
  const std::uint64_t later = next_save_identity().job_start + 1'000'000'000'000;
  order_saves_after("0123456789abcdef0123456789abcdef", later);
  EXPECT_EQ(next_save_identity().job_start, later + 1);
}

}  // namespace
}  // namespace cairn::commit

// Asynchronous saves of a process in a real memory cgroup with room for one copy of the state, not for two copies.
#include <cairn/async_checkpointer.h>
#include <cairn/cairn.h>
#include <gtest/gtest.h>
#include <sanitizers.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include "core/byte_units.h"
#include "os/testing/scratch_memory_group.h"
#include "storage/testing/scratch_directory.h"

namespace cairn {
namespace {

constexpr std::uint64_t kLimit = 200 * kMiB;
constexpr std::int64_t kElements = 70 * kMiB / sizeof(float);

class SmallMemoryGroup : public testing::Test {
 protected:
  void SetUp() override {
    if (kThreadSanitized) {
      GTEST_SKIP() << "the thread sanitizer needs several times the memory that the group has";
    }
    if (!group_.why_not().empty()) GTEST_SKIP() << group_.why_not();
  }

  // Runs `body` in a child process in the cgroup; returns the child's exit status.
  int run(const std::function<void()>& body) const {
    const pid_t child = fork();
    if (child == 0) {
      if (!group_.join()) _exit(2);
      body();
      _exit(HasFailure() ? 1 : 0);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return status;
  }

  // The first save keeps its arena until the second save, which has no room for an arena, has called `interrupted`
  // twice.
  void save_twice(bool heed_memory_limits) const {
    const std::vector<float> values(kElements, 1.5F);
    StateDict state;
    EXPECT_TRUE(state.add_tensor("t", TensorView::contiguous(values.data(), DType::kFloat32, {kElements})));
    AsyncCheckpointerOptions options;
    options.overlap = true;
    options.stager = CheckpointStager::make({.generations = 2, .heed_memory_limits = heed_memory_limits});
    AsyncCheckpointer checkpointer(options);

    std::promise<void> copied, go_on;
    AsyncSaveOptions held;
    held.save.durability = Durability::kBuffered;
    held.asynchronous_staging = true;
    held.confirm_sources = [&]() -> Result<void> {
      copied.set_value();
      go_on.get_future().wait();
      return {};
    };
    const auto first = checkpointer.save(scratch_.path() / "first", state, held);
    ASSERT_TRUE(first) << first.error().what();
    copied.get_future().wait();

    AsyncSaveOptions waits;
    waits.save.durability = Durability::kBuffered;
    int asked = 0;
    waits.save.interrupted = [&] {
      if (++asked == 2) go_on.set_value();
      return false;
    };
    const auto second = checkpointer.save(scratch_.path() / "second", state, waits);
    ASSERT_TRUE(second) << second.error().what();
    for (const auto& save : {*first, *second}) {
      EXPECT_TRUE(save.write.get()) << save.write.get().error().what();
    }
    EXPECT_EQ(options.stager->arena_count(), 1U);
    EXPECT_TRUE(verify(scratch_.path() / "second")->problems.empty());

    // A state that exceeds the limit is refused; the error names the limit. The next save succeeds.
    StateDict large;
    for (const std::string key : {"a", "b", "c", "d"}) {
      EXPECT_TRUE(large.add_tensor(key, TensorView::contiguous(values.data(), DType::kFloat32, {kElements})));
    }
    const auto refused = checkpointer.save(scratch_.path() / "third", large, waits);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::kNoSpace);
    EXPECT_NE(std::string(refused.error().what()).find(group_.folder().filename().string()), std::string::npos)
        << refused.error().what();
    EXPECT_NE(std::string(refused.error().what()).find(std::to_string(kLimit)), std::string::npos);
    const auto last = checkpointer.save(scratch_.path() / "third", state, waits);
    ASSERT_TRUE(last) << last.error().what();
    EXPECT_TRUE(last->write.get());
  }

  const os::ScratchMemoryGroup group_{kLimit};
  storage::ScratchDirectory scratch_;
};

TEST_F(SmallMemoryGroup, TheSecondSaveWaitsForTheFirst) {
  const int status = run([this] { save_twice(true); });
  EXPECT_TRUE(WIFEXITED(status)) << "killed by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// The counter-example: without the memory limits the kernel kills the process.
TEST_F(SmallMemoryGroup, KillsAProcessWithoutLimits) {
  const int status = run([this] { save_twice(false); });
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
}

}  // namespace
}  // namespace cairn

// Arenas under memory limits, which the tests set through the files of a simulated machine.
#include "staging/arena_pool.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <string>
#include <vector>

#include "core/byte_units.h"
#include "os/testing/memory_files.h"

namespace cairn::staging {
namespace {

constexpr std::uint64_t kSize = 16 * kMiB;
constexpr std::chrono::milliseconds kShortWait{50};
constexpr std::chrono::hours kNever{1};

class LimitedArenas : public testing::Test {
 protected:
  LimitedArenas() {
    files_.join_task();
    files_.leave_in_task(1000 * kMiB);
  }

  static void fill(Arena& arena, std::uint64_t bytes = kSize) {
    ASSERT_TRUE(arena.make_present(0, bytes));
    arena.note_present(bytes);
  }

  // `error` contains the figures, the duration of the wait, and advice.
  static void expect_wait_in(const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNoSpace);
    const std::string what = error.what();
    for (const std::string part : {"'/sys/fs/cgroup/job/task'", "waiting ", " ms for memory", "deadline_seconds"}) {
      EXPECT_NE(what.find(part), std::string::npos) << part << " in: " << what;
    }
  }

  os::MemoryFiles files_;
  ArenaPool pool_{3, files_.limits()};
};

TEST_F(LimitedArenas, AsManyAsThereIsRoomFor) {
  auto first = pool_.take(kSize).value();
  auto second = pool_.take(kSize).value();
  EXPECT_NE(first->id(), second->id());
}

TEST_F(LimitedArenas, WaitForAReturnWithoutRoom) {
  auto first = pool_.take(kSize).value();
  fill(*first);
  const std::uint64_t first_id = first->id();
  files_.leave_in_task(kSize - 1);
  std::promise<void> waits;
  int asked = 0;
  const auto interrupted = [&] {
    if (++asked == 2) waits.set_value();
    return false;
  };
  auto second = std::async(std::launch::async, [&] { return pool_.take(kSize, interrupted).value()->id(); });
  waits.get_future().get();
  first.reset();
  EXPECT_EQ(second.get(), first_id);
  EXPECT_EQ(pool_.arena_count(), 1U);
}

TEST_F(LimitedArenas, MadeWhenRoomBecomesFree) {
  auto first = pool_.take(kSize).value();
  fill(*first);
  files_.leave_in_task(kSize - 1);
  const auto interrupted = [&] {
    files_.leave_in_task(2 * kSize);
    return false;
  };
  EXPECT_NE(pool_.take(kSize, interrupted).value()->id(), first->id());
}

TEST_F(LimitedArenas, LookAgainAtAReturnAlone) {
  ArenaPool pool(3, files_.limits(), kNever);
  auto first = pool.take(kSize).value();
  fill(*first);
  const std::uint64_t first_id = first->id();
  files_.leave_in_task(kSize - 1);
  int asked = 0;
  const auto interrupted = [&] {
    ++asked;
    if (asked == 1) files_.leave_in_task(2 * kSize);
    if (asked == 5) first.reset();
    return false;
  };
  EXPECT_EQ(pool.take(kSize, interrupted).value()->id(), first_id);
  EXPECT_EQ(asked, 5);
  EXPECT_EQ(pool.arena_count(), 1U);
}

TEST_F(LimitedArenas, WaitEndsAtTheCallersLimit) {
  auto first = pool_.take(kSize).value();
  fill(*first);
  files_.leave_in_task(kSize - 1);
  const auto refused = pool_.take(kSize, {}, kShortWait);
  ASSERT_FALSE(refused);
  expect_wait_in(refused.error());
  first.reset();
  EXPECT_TRUE(pool_.take(kSize, {}, kShortWait));
}

TEST_F(LimitedArenas, WaitOfALateSizeEndsAtTheLimit) {
  auto first = pool_.take(kSize).value();
  fill(*first);
  auto second = pool_.take({}).value();
  files_.leave_in_task(kSize - 1);
  const auto refused = pool_.fit(second, kSize, {}, kShortWait);
  ASSERT_FALSE(refused);
  expect_wait_in(refused.error());
  first.reset();
  EXPECT_TRUE(pool_.take(kSize, {}, kShortWait));
}

TEST_F(LimitedArenas, LookOnceMoreAtTheEndOfAWait) {
  ArenaPool pool(3, files_.limits(), kNever);
  auto first = pool.take(kSize).value();
  fill(*first);
  files_.leave_in_task(kSize - 1);
  const auto interrupted = [&] {
    files_.leave_in_task(2 * kSize);
    return false;
  };
  EXPECT_NE(pool.take(kSize, interrupted, kShortWait).value()->id(), first->id());
}

TEST_F(LimitedArenas, WaitWithoutLimitIfRoomIsLeft) {
  ArenaPool pool(1, files_.limits());
  auto first = pool.take(kSize).value();
  int asked = 0;
  const auto interrupted = [&] {
    if (++asked == 3) first.reset();
    return false;
  };
  EXPECT_TRUE(pool.take(kSize, interrupted, std::chrono::milliseconds(0)));
  EXPECT_EQ(asked, 3);
}

TEST_F(LimitedArenas, CountReservedBytes) {
  auto first = pool_.take(kSize).value();
  files_.leave_in_task(kSize + kSize / 2);
  // The first arena still needs its pages: a second arena does not fit.
  const auto stop = [] { return true; };
  EXPECT_EQ(pool_.take(kSize, stop).error().code(), ErrorCode::kCancelled);
  fill(*first);
  EXPECT_TRUE(pool_.take(kSize, stop));
}

TEST_F(LimitedArenas, RefusedIfNoWaitWouldHelp) {
  auto first = pool_.take(kSize).value();
  fill(*first);
  files_.leave_in_task(kMiB);
  const auto refused = pool_.take(3 * kSize);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kNoSpace);
  const std::string what = refused.error().what();
  for (const std::string& part :
       std::vector<std::string>{"'/sys/fs/cgroup/job/task'", std::to_string(2064 * kMiB), std::to_string(1999 * kMiB),
                                std::to_string(3 * kSize), "generations", "synchronously"}) {
    EXPECT_NE(what.find(part), std::string::npos) << part << " in: " << what;
  }
  first.reset();
  EXPECT_EQ(pool_.take(3 * kSize).error().code(), ErrorCode::kNoSpace);
  EXPECT_TRUE(pool_.take(kSize + kMiB / 2));
}

TEST_F(LimitedArenas, FreeArenasGiveTheirMemoryBack) {
  auto first = pool_.take(kSize).value();
  auto second = pool_.take(kSize).value();
  fill(*first);
  fill(*second);
  const std::uint64_t second_id = second->id();
  second.reset();
  first.reset();
  files_.leave_in_task(kMiB);
  const auto refused = pool_.take(2 * kSize);  // the simulated files do not show the freed memory
  EXPECT_EQ(refused.error().code(), ErrorCode::kNoSpace);
  const auto taken = pool_.take(kSize).value();
  EXPECT_EQ(taken->missing_bytes(kSize), 0U);
  const auto other = pool_.take({}).value();
  EXPECT_TRUE(taken->id() == second_id || other->id() == second_id);
  EXPECT_EQ(other->bytes().size(), 0U);
}

TEST_F(LimitedArenas, FilledArenaNeedsNoRoom) {
  auto first = pool_.take(kSize).value();
  fill(*first);
  first.reset();
  files_.leave_in_task(0);
  auto again = pool_.take(kSize).value();
  fill(*again);
}

TEST_F(LimitedArenas, SmallArenaIsNotRefused) {
  files_.leave_in_task(0);
  auto arena = pool_.take(kMiB).value();
  EXPECT_TRUE(arena->make_present(0, kMiB));
}

TEST_F(LimitedArenas, StopToGrowWhenOthersTakeRoom) {
  auto arena = pool_.take(kSize).value();
  files_.leave_in_task(kMiB);
  ASSERT_TRUE(arena->make_present(0, 4 * kMiB));
  const auto refused = arena->make_present(4 * kMiB, 4 * kMiB);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kNoSpace);
  EXPECT_GE(arena->present_bytes(), 4 * kMiB);
  const std::weak_ptr<const void> life = arena->life();
  arena.reset();
  const auto again = pool_.take({}).value();
  EXPECT_FALSE(life.expired());
  EXPECT_LT(again->present_bytes(), kMiB);
}

TEST_F(LimitedArenas, ExchangedIfALateSizeDoesNotFit) {
  auto first = pool_.take(kSize).value();
  fill(*first);
  auto second = pool_.take({}).value();
  const std::uint64_t first_id = first->id();
  files_.leave_in_task(kMiB);
  const auto interrupted = [&] {
    first.reset();
    return false;
  };
  ASSERT_TRUE(pool_.fit(second, kSize, interrupted));
  EXPECT_EQ(second->id(), first_id);
  files_.leave_in_task(1000 * kMiB);
  ASSERT_TRUE(pool_.fit(second, 4 * kSize));
  EXPECT_EQ(second->id(), first_id);
  EXPECT_EQ(second->bytes().size(), 4 * kSize);
}

TEST(Arenas, SharedInAPoolForAProcess) {
  ArenaPool pool(2);
  const auto of_threads = pool.take(kSize).value();
  EXPECT_FALSE(of_threads->is_shared());
  ASSERT_TRUE(of_threads->make_present(0, kSize));
  pool.share_with_processes();
  EXPECT_FALSE(of_threads->is_shared()) << "a save uses the arena";
  const auto of_process = pool.take(kSize).value();
  EXPECT_TRUE(of_process->is_shared());
  EXPECT_GE(of_process->fd(), 0);
  EXPECT_GE(of_process->bytes().size(), kSize);
}

TEST(Arenas, BecomeSharedAtTheNextLoan) {
  ArenaPool pool(1);
  std::uint64_t id = 0;
  {
    const auto arena = pool.take(kSize).value();
    id = arena->id();
    ASSERT_TRUE(arena->make_present(0, kSize));
    arena->note_present(kSize);
    arena->note_staged(Arena::kAll);
  }
  pool.share_with_processes();
  const auto arena = pool.take(kSize).value();
  EXPECT_EQ(arena->id(), id);
  EXPECT_TRUE(arena->is_shared());
  EXPECT_EQ(arena->staged(), 0U);
  EXPECT_GE(arena->missing_bytes(kSize), kSize) << "the pages of the private memory are gone";
  ASSERT_TRUE(arena->make_present(0, kSize));
  EXPECT_EQ(arena->missing_bytes(kSize), 0U);
}

}  // namespace
}  // namespace cairn::staging

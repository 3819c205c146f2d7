// Memory prepared for a first save, under memory limits that the tests set through the files of a simulated machine.
#include "staging/arena_preparation.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "core/byte_units.h"
#include "os/testing/memory_files.h"

namespace cairn::staging {
namespace {

constexpr std::uint64_t kPrepared = 64 * kMiB;
constexpr std::uint64_t kRoomLeft = 256 * kMiB;  // by a preparation of kPrepared

class PreparedArenas : public testing::Test {
 protected:
  PreparedArenas() {
    files_.join_task();
    files_.leave_in_task(1500 * kMiB);
  }

  std::unique_ptr<ArenaPreparation> start(ArenaPreparation::Steps steps = {}) {
    return ArenaPreparation::start(pool_, kPrepared, options_, std::move(steps)).value();
  }
  // Whether the pages of the free arenas come to take `least` to `most` bytes, within the deadline of the test.
  bool comes_to_hold(std::uint64_t least, std::uint64_t most) const {
    for (int i = 0; i < 3000; ++i) {
      const std::uint64_t bytes = pool_.free_bytes();
      if (bytes >= least && bytes <= most) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  os::MemoryFiles files_;
  ArenaPool pool_{2, files_.limits()};
  PreparationOptions options_{std::chrono::hours(1), std::chrono::milliseconds(10), {}};
};

TEST_F(PreparedArenas, FirstSaveFindsAllPages) {
  options_.look_interval = options_.idle_max;  // a look would give the pages back under the pressure below
  const auto preparation = start();
  ASSERT_TRUE(comes_to_hold(kPrepared, 2 * kPrepared));
  files_.leave_in_task(0);  // a page that is missing could not be taken
  const auto arena = pool_.take(kPrepared).value();
  EXPECT_LE(arena->missing_bytes(), Arena::kSmallBytes);
  EXPECT_TRUE(arena->make_present(0, kPrepared));
  EXPECT_EQ(pool_.arena_count(), 1U);
}

TEST_F(PreparedArenas, KeepPagesForAnotherSize) {
  const auto preparation = start();
  ASSERT_TRUE(comes_to_hold(kPrepared, 2 * kPrepared));
  auto larger = pool_.take(2 * kPrepared).value();
  EXPECT_EQ(larger->bytes().size(), 2 * kPrepared);
  EXPECT_LE(larger->missing_bytes(), kPrepared);
  EXPECT_TRUE(larger->make_present(kPrepared, kPrepared));
  larger.reset();
  const auto smaller = pool_.take(kMiB).value();
  EXPECT_EQ(smaller->bytes().size(), kMiB);
  EXPECT_EQ(pool_.arena_count(), 1U);
}

// The step `with` runs while the preparation holds the arena: the save waits for its end, and no longer.
TEST_F(PreparedArenas, WaitForARunningPreparation) {
  std::promise<void> holds;
  std::atomic<bool> was_used{false};
  ArenaPreparation::Steps steps;
  steps.with = [&](const std::shared_ptr<Arena>&) {
    holds.set_value();
    while (!pool_.is_used()) std::this_thread::yield();
    was_used = true;
  };
  const auto preparation = start(std::move(steps));
  holds.get_future().wait();
  const auto arena = pool_.take(kPrepared).value();
  EXPECT_TRUE(was_used);
  EXPECT_EQ(pool_.arena_count(), 1U);
  EXPECT_LE(arena->missing_bytes(), Arena::kSmallBytes);
}

TEST_F(PreparedArenas, NotPreparedAfterASave) {
  pool_.take(kMiB).value().reset();
  bool was_called = false;
  ArenaPreparation::Steps steps;
  steps.before = [&] { was_called = true; };
  start(std::move(steps)).reset();
  EXPECT_FALSE(was_called);
  EXPECT_LT(pool_.free_bytes(), 2 * kMiB);
}

TEST_F(PreparedArenas, MadeOnlyWithRoomForTheProgram) {
  files_.leave_in_task(kRoomLeft);
  std::promise<void> began;
  ArenaPreparation::Steps steps;
  steps.before = [&] { began.set_value(); };
  auto preparation = start(std::move(steps));
  began.get_future().wait();
  preparation.reset();
  EXPECT_EQ(pool_.arena_count(), 0U);
}

TEST_F(PreparedArenas, GiveMemoryBackUnderPressure) {
  const auto preparation = start();
  ASSERT_TRUE(comes_to_hold(kPrepared, 2 * kPrepared));
  files_.leave_in_task(kRoomLeft / 2 - 1);
  EXPECT_TRUE(comes_to_hold(0, kMiB));
}

TEST_F(PreparedArenas, GiveMemoryBackWithoutASave) {
  options_.idle_max = std::chrono::milliseconds(50);
  const auto preparation = start();
  ASSERT_TRUE(comes_to_hold(1, 2 * kPrepared));
  EXPECT_TRUE(comes_to_hold(0, kMiB));
}

TEST_F(PreparedArenas, LaterPreparationFreesEarlier) {
  auto preparation = start();
  ASSERT_TRUE(comes_to_hold(kPrepared, 2 * kPrepared));
  options_.idle_max = std::chrono::milliseconds(50);
  preparation.reset();
  preparation = ArenaPreparation::start(pool_, kMiB, options_, {}).value();
  EXPECT_TRUE(comes_to_hold(0, kMiB));
}

TEST_F(PreparedArenas, KeptOnceASaveHasCome) {
  const auto preparation = start();
  ASSERT_TRUE(comes_to_hold(kPrepared, 2 * kPrepared));
  pool_.take(kPrepared).value().reset();
  pool_.free_prepared();
  EXPECT_GE(pool_.free_bytes(), kPrepared);
}

}  // namespace
}  // namespace cairn::staging

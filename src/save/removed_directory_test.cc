// Saves whose directory another process removes between the opening and the first file in it, as prune() does with a
// directory that it has emptied.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <latch>
#include <utility>

#include "coordination/testing/as_ranks.h"
#include "save/save_calls.h"
#include "save/testing/sample_state.h"
#include "storage/open_directory.h"
#include "storage/testing/scratch_directory.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;

class RemovedDirectory : public testing::Test {
 protected:
  // Removes the directory after each of the first `removals` openings.
  checkpointer::SaveDirectory removed_at_first(int removals) {
    return {"here", [this, removals]() -> Result<std::unique_ptr<storage::Storage>> {
              CAIRN_TRY_ASSIGN(auto opened, storage::make_directory(directory_));
              if (openings_++ < removals) EXPECT_TRUE(fs::remove(directory_));
              return opened;
            }};
  }

  storage::ScratchDirectory scratch_;
  fs::path directory_ = scratch_.path() / "step-1";
  std::atomic<int> openings_ = 0;
};

TEST_F(RemovedDirectory, IsMadeAgainByASave) {
  for (const int removals : {1, 2}) {
    openings_ = 0;
    SampleState state(removals);
    const auto report = checkpointer::save_into(removed_at_first(removals), state.dict(), {});
    ASSERT_TRUE(report) << report.error().what();
    EXPECT_EQ(openings_, removals + 1);
    SampleState target(0);
    ASSERT_TRUE(load(directory_, target.dict()));
    EXPECT_EQ(target.step(), removals);
    fs::remove_all(directory_);
  }
}

TEST_F(RemovedDirectory, FailsASaveIfRemovedEachTime) {
  SampleState state(1);
  const auto report = checkpointer::save_into(removed_at_first(1 << 30), state.dict(), {});
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), ErrorCode::kNotFound) << report.error().what();
}

TEST_F(RemovedDirectory, IsMadeAgainByASaveInSteps) {
  const auto claim = checkpointer::claim_in(removed_at_first(1), {});
  ASSERT_TRUE(claim) << claim.error().what();
  EXPECT_FALSE(fs::is_empty(directory_));
}

// A rank that holds the removed directory open writes into the directory that the coordinator has made.
TEST_F(RemovedDirectory, IsReplacedForAnEarlyRank) {
  std::latch is_removed(1);
  as_ranks(2, [&](std::size_t rank, Collectives& collectives) {
    checkpointer::SaveDirectory place = removed_at_first(1);
    if (rank == 1) {
      place.open = [&is_removed, open = std::move(place.open)] {
        auto opened = open();
        if (!is_removed.try_wait()) is_removed.count_down();
        return opened;
      };
    } else {
      place.open = [&is_removed, open = std::move(place.open)] {
        is_removed.wait();
        return open();
      };
    }
    float own = static_cast<float>(rank) + 1;
    StateDict state;
    ASSERT_TRUE(state.add_tensor(Path{"own", static_cast<std::int64_t>(rank)},
                                 TensorView::contiguous(&own, DType::kFloat32, {1})));
    const auto report = checkpointer::save_into(place, state, {.collectives = &collectives});
    ASSERT_TRUE(report) << report.error().what();
  });
  EXPECT_EQ(openings_, 3);
  float first = 0;
  float second = 0;
  StateDict whole;
  ASSERT_TRUE(whole.add_tensor(Path{"own", 0}, TensorView::contiguous(&first, DType::kFloat32, {1})));
  ASSERT_TRUE(whole.add_tensor(Path{"own", 1}, TensorView::contiguous(&second, DType::kFloat32, {1})));
  ASSERT_TRUE(load(directory_, whole));
  EXPECT_EQ(first, 1);
  EXPECT_EQ(second, 2);
}

}  // namespace
}  // namespace cairn

// Sequences of saves on a model disk, which loses unsynced data at a power failure, with a fault at each operation.
#include <gtest/gtest.h>
#include <sanitizers.h>

#include <cerrno>
#include <optional>

#include "checkpoint/open_calls.h"
#include "commit/lease.h"
#include "commit/testing/dead_lease.h"
#include "save/save_calls.h"
#include "save/testing/sample_state.h"
#include "storage/testing/model_storage.h"
#include "writer/dead_save.h"

namespace cairn {
namespace {

using storage::ModelStorage;

constexpr std::uint64_t kSeedStep = kSanitized ? 5 : 1;       // odd: even and odd seeds are different faults
constexpr std::uint64_t kPairSeedStep = kSanitized ? 15 : 1;  // of tests with two faults

bool save_step(ModelStorage& disk, int step) {
  const SampleState state(step);
  SaveOptions options;
  options.thread_count = 1;  // makes the order of operations deterministic
  options.checkpoint_id = "model";
  return checkpointer::save_into({"model", ModelStorage::opening(disk)}, state.dict(), options).has_value();
}

// The step of the checkpoint; 0 without a checkpoint, -1 if the checkpoint is damaged or mixes steps.
int load_step(ModelStorage& disk) {
  const auto checkpoint = checkpointer::open_in(ModelStorage::view_of(disk));
  if (!checkpoint) return checkpoint.error().code() == ErrorCode::kNotFound ? 0 : -1;
  SampleState target(0);
  if (auto report = checkpoint->load(target.dict()); !report) {
    ADD_FAILURE() << report.error().what();
    return -1;
  }
  return target.step();
}

TEST(Crash, LeavesTheOldOrNewCheckpoint) {
  for (std::uint64_t crash_at = 0;; ++crash_at) {
    bool crashed = false;
    for (std::uint64_t seed = 0; seed < 20; seed += kSeedStep) {
      SCOPED_TRACE(testing::Message() << "crash_at=" << crash_at << " seed=" << seed);
      ModelStorage disk;
      ASSERT_TRUE(save_step(disk, 1));
      disk.crash_at(disk.operation_count() + crash_at);
      const bool saved = save_step(disk, 2);
      crashed = disk.fault_fired();
      disk.lose_power(seed);
      const int found = load_step(disk);
      if (saved) {
        EXPECT_EQ(found, 2);
      } else {
        EXPECT_TRUE(found == 1 || found == 2) << found;
      }
      // A later save succeeds.
      EXPECT_TRUE(save_step(disk, 3));
      EXPECT_EQ(load_step(disk), 3);
    }
    if (!crashed) break;  // the loop covered every operation
  }
}

// A process saves step 2 over step 1 and is killed at operation `kill_at`. Returns the dead save; nullopt if the save
// ended earlier or left no private folder.
std::optional<writer::DeadSave> save_and_be_killed(ModelStorage& disk, std::uint64_t kill_at) {
  EXPECT_TRUE(save_step(disk, 1));
  disk.crash_at(disk.operation_count() + kill_at);
  (void)save_step(disk, 2);
  if (!disk.fault_fired()) return std::nullopt;
  disk.outlive_crash();
  for (const storage::ListedFile& file : disk.list("").value()) {
    const auto save_id = commit::save_id_of_folder(file.name);
    if (!save_id) continue;
    commit::leave_dead_lease(disk, file.name);
    return writer::DeadSave{"model", *save_id, ".metadata"};
  }
  return std::nullopt;
}

// The writer process is killed at each operation of a save. The clean-up of the dead save then has, at each operation
// of the clean-up, a power failure or a failed operation.
TEST(Crash, CleanUpLeavesOldOrNew) {
  std::uint64_t settled = 0;
  for (std::uint64_t kill_at = 0;; ++kill_at) {
    bool killed = false;
    for (std::uint64_t fault_at = 0;; ++fault_at) {
      bool fired = false;
      for (std::uint64_t seed = 0; seed < 16; seed += kPairSeedStep) {
        SCOPED_TRACE(testing::Message() << "kill_at=" << kill_at << " fault_at=" << fault_at << " seed=" << seed);
        ModelStorage disk;
        const auto dead = save_and_be_killed(disk, kill_at);
        killed = disk.fault_fired();
        if (!dead) break;
        if (seed % 2 == 0) {
          disk.crash_at(disk.operation_count() + fault_at);
        } else {
          disk.fail_at(disk.operation_count() + fault_at, Error::from_errno(EIO, "injected"));
        }
        (void)writer::clean_up_dead_save_in(disk, *dead, Error(ErrorCode::kUnavailable, "killed"));
        ++settled;
        fired = fired || disk.fault_fired();
        disk.lose_power(seed);
        const int found = load_step(disk);
        EXPECT_TRUE(found == 1 || found == 2) << found;
        EXPECT_TRUE(save_step(disk, 3));
        EXPECT_EQ(load_step(disk), 3);
      }
      if (!fired) break;
    }
    if (!killed) break;
  }
  EXPECT_GT(settled, 0u);
}

TEST(Crash, FirstSaveLeavesAllOrNothing) {
  for (std::uint64_t crash_at = 0;; ++crash_at) {
    SCOPED_TRACE(testing::Message() << "crash_at=" << crash_at);
    ModelStorage disk;
    disk.crash_at(crash_at);
    const bool saved = save_step(disk, 1);
    const bool crashed = disk.fault_fired();
    disk.lose_power(crash_at);
    const int found = load_step(disk);
    EXPECT_TRUE(found == 1 || (!saved && found == 0)) << found;
    if (!crashed) break;
  }
}

TEST(Crash, FailedOperationKeepsCheckpoint) {
  for (std::uint64_t number = 0;; ++number) {
    SCOPED_TRACE(testing::Message() << "number=" << number);
    ModelStorage disk;
    ASSERT_TRUE(save_step(disk, 1));
    const std::size_t files_before = disk.list("").value().size();
    disk.fail_at(disk.operation_count() + number, Error::from_errno(EIO, "injected"));
    const bool saved = save_step(disk, 2);
    const bool fired = disk.fault_fired();
    const int found = load_step(disk);
    if (saved) {
      EXPECT_EQ(found, 2);  // only the removal of leftovers failed
    } else if (found == 1) {
      EXPECT_LE(disk.list("").value().size(), files_before + 1);  // plus a folder, if its removal failed
    } else {
      EXPECT_EQ(found, 2);  // the sync after the rename failed: the files of both checkpoints are kept
    }
    if (!fired) break;
  }
}

}  // namespace
}  // namespace cairn

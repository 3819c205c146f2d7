// Saves of a rank alone, in a directory with the checkpoints of other ranks: calls into the storage, and leftovers.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "commit/rank_note.h"
#include "commit/testing/dead_lease.h"
#include "commit/testing/one_save.h"
#include "storage/testing/counting_storage.h"
#include "storage/testing/model_storage.h"
#include "storage/testing/view_storage.h"

namespace cairn::commit {
namespace {

using storage::ModelStorage;

constexpr std::uint32_t kAlone = 3;

ClaimOptions alone(std::uint32_t rank = kAlone) { return {.alone_as_rank = rank}; }

class RankAlone : public testing::Test {
 protected:
  void leave(const std::string& name, const std::string& bytes) {
    ASSERT_TRUE(disk_.create_whole(name, bytes, Durability::kBuffered));
  }
  // A save of `rank` that was killed after its file got the final name.
  std::string die(const SaveIdentity& identity, std::uint32_t rank = kAlone) {
    OneSave save(disk_, identity, alone(rank));
    EXPECT_TRUE(save.publish());
    disk_.crash_at(disk_.operation_count());
    save.withdraw();
    disk_.outlive_crash();
    leave_dead_lease(disk_, folder_of(identity.save_id));
    return save.name();
  }
  std::uint64_t calls_of_save(std::uint64_t number) {
    std::atomic<std::uint64_t> calls{0};
    storage::CountingStorage counting(disk_, calls);
    commit_one(counting, save_number(number), alone());
    return calls;
  }

  ModelStorage disk_;
};

TEST_F(RankAlone, CallsDoNotGrowWithTheRanks) {
  commit_one(disk_, save_number(1), alone());
  const std::uint64_t among_one = calls_of_save(2);
  std::vector<std::unique_ptr<OneSave>> saves_in_flight;
  for (std::uint32_t rank = 10; rank < 40; ++rank) {
    commit_one(disk_, save_number(rank, kOtherJob), alone(rank));
    saves_in_flight.push_back(std::make_unique<OneSave>(disk_, save_number(100 + rank, kOtherJob), alone(rank)));
  }
  EXPECT_EQ(calls_of_save(3), among_one);
}

TEST_F(RankAlone, LeavesItsMetadataAndItsFile) {
  commit_one(disk_, save_number(1), alone());
  EXPECT_EQ(names_in(disk_), (std::vector<std::string>{"__3.metadata", "__3_0.distcp"}));
  commit_one(disk_, save_number(2), alone());
  EXPECT_EQ(names_in(disk_).size(), 2u) << testing::PrintToString(names_in(disk_));
  EXPECT_FALSE(holds(disk_, "__3_0.distcp"));
}

TEST_F(RankAlone, LeavesNothingIfTheSaveFails) {
  OneSave save(disk_, save_number(1), alone());
  EXPECT_TRUE(holds(disk_, rank_note_name(kAlone)));
  ASSERT_TRUE(save.publish());
  save.withdraw();
  EXPECT_TRUE(names_in(disk_).empty()) << testing::PrintToString(names_in(disk_));
}

TEST_F(RankAlone, RemovesItsDeadSavesLeftovers) {
  const std::string first = die(save_number(1, kOtherJob));
  const std::string second = die(save_number(2, kOtherJob));
  EXPECT_EQ(read_rank_note(disk_, kAlone).size(), 2u);
  EXPECT_NE(first, second);
  commit_one(disk_, save_number(1), alone());
  EXPECT_EQ(names_in(disk_).size(), 2u) << testing::PrintToString(names_in(disk_));
}

TEST_F(RankAlone, KeepsFilesOfLivingAndOthers) {
  OneSave living(disk_, save_number(1, kOtherJob), alone());
  ASSERT_TRUE(living.publish());
  const std::string dead_of_another = die(save_number(2, kOtherJob), 5);
  commit_one(disk_, save_number(1), alone());
  EXPECT_TRUE(holds(disk_, living.name()));
  EXPECT_TRUE(holds(disk_, dead_of_another));
  EXPECT_EQ(read_rank_note(disk_, kAlone), std::vector<SaveId>{save_number(1, kOtherJob).save_id});
  commit_one(disk_, save_number(3));  // a save of all ranks lists the directory
  EXPECT_FALSE(holds(disk_, dead_of_another));
}

TEST_F(RankAlone, KeepsReplacedFileNamedByAll) {
  commit_one(disk_, save_number(1), alone());
  const auto of_all = claim_checkpoint(disk_, save_number(2)).value();
  manifest::CommitRecord record;
  record.files.push_back({"__3_0.distcp", 4, 0});
  ASSERT_TRUE(of_all->commit("pickle", record, Durability::kBuffered));
  commit_one(disk_, save_number(3), alone());
  EXPECT_TRUE(holds(disk_, "__3_0.distcp"));
}

TEST_F(RankAlone, KeepsAnotherRanksReplacedFile) {
  const auto copied = claim_checkpoint(disk_, save_number(1), alone()).value();
  manifest::CommitRecord record;
  record.files.push_back({"__5_0.distcp", 4, 0});
  leave("__5_0.distcp", data_file_of(save_number(9).save_id));
  ASSERT_TRUE(copied->commit("pickle", record, Durability::kBuffered));
  commit_one(disk_, save_number(2), alone());
  EXPECT_TRUE(holds(disk_, "__5_0.distcp"));
}

// Another user may have written the note.
TEST_F(RankAlone, RemovesNothingForAForeignNote) {
  const SaveIdentity of_another = save_number(7, kOtherJob);
  const std::string file = die(of_another, 5);
  leave(rank_note_name(kAlone), to_hex(of_another.save_id) + "\nno save\n");
  commit_one(disk_, save_number(1), alone());
  EXPECT_TRUE(holds(disk_, file));
}

TEST_F(RankAlone, IgnoresAnUnreadableNote) {
  leave(rank_note_name(kAlone), std::string(1 << 20, 'x'));
  commit_one(disk_, save_number(1), alone());
  EXPECT_EQ(names_in(disk_).size(), 2u);
}

// Notes whether the note of a rank is opened.
class NotesSeen final : public storage::ViewStorage {
 public:
  using ViewStorage::ViewStorage;
  Result<std::unique_ptr<storage::ReadableFile>> open(std::string_view name, bool follow_links) const override {
    if (name.starts_with(".cairn-rank-")) is_seen = true;
    return ViewStorage::open(name, follow_links);
  }
  mutable bool is_seen = false;
};

TEST_F(RankAlone, HasANoteThatOnlyRanksRead) {
  ASSERT_TRUE(rank_note_name(kAlone).starts_with(".cairn-rank-"));
  NotesSeen disk(disk_);
  commit_one(disk, save_number(1));
  EXPECT_FALSE(disk.is_seen);
  commit_one(disk, save_number(2), alone());
  EXPECT_TRUE(disk.is_seen);
}

// A kill at each operation of a save: the rank's next save finds all leftovers but an empty private folder, if the kill
// came before the note.
TEST_F(RankAlone, NextSaveCleansUpAfterAnyKill) {
  for (std::uint64_t kill_at = 0, fired = 1; fired; ++kill_at) {
    SCOPED_TRACE(kill_at);
    ModelStorage disk;
    commit_one(disk, save_number(1), alone());
    disk.crash_at(disk.operation_count() + kill_at);
    const auto claim = claim_checkpoint(disk, save_number(2), alone());
    const std::string name = data_file_name({save_number(2), false}, kAlone, 0);
    const auto folder = folder_of(save_number(2).save_id);
    if (claim) {
      const std::string file = folder + "/" + name;
      if (disk.create_whole(file, data_file_of(save_number(2).save_id), Durability::kBuffered)) {
        if (disk.publish(file, name)) {
          manifest::CommitRecord record;
          record.files.push_back({name, 4, 0});
          (void)(*claim)->commit("pickle", record, Durability::kDurable);
        }
      }
    }
    fired = disk.fault_fired() ? 1 : 0;
    disk.outlive_crash();
    const bool has_folder = holds(disk, folder);
    if (has_folder) leave_dead_lease(disk, folder);
    const bool is_noted = !read_rank_note(disk, kAlone).empty();
    commit_one(disk, save_number(3, kOtherJob), alone());
    std::vector<std::string> left = names_in(disk);
    if (has_folder && !is_noted) std::erase(left, folder);
    EXPECT_EQ(left.size(), 2u) << testing::PrintToString(left);
  }
}

}  // namespace
}  // namespace cairn::commit

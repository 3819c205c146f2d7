// The commit of a safetensors model, step by step, on a model disk.
#include "commit/model/model_commit.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <vector>

#include "commit/model/model_in_place.h"
#include "commit/model/model_leftovers.h"
#include "commit/testing/dead_lease.h"
#include "commit/testing/faulty_model_storage.h"
#include "commit/testing/one_model.h"
#include "format/safetensors/header.h"
#include "storage/posix/posix_storage.h"
#include "storage/testing/scratch_directory.h"
#include "storage/testing/view_storage.h"

namespace cairn::commit {
namespace {

TEST(ModelFiles, NamesAreThoseOfTorch) {
  EXPECT_EQ(model_file_name({model_save(1), true}, {1, 2, {}}), "model-00001-of-00002.safetensors");
  EXPECT_EQ(model_file_name({model_save(1), true}, {1, 2, 3}), "shard-00003-model-00001-of-00002.safetensors");
  for (const bool fresh : {true, false}) {
    EXPECT_TRUE(is_model_file_name(model_file_name({model_save(1), fresh}, {1, 2, {}})));
    EXPECT_TRUE(is_model_file_name(model_file_name({model_save(1), fresh}, {1, 2, 3})));
  }
  EXPECT_TRUE(is_model_file_name("model.safetensors"));
  for (const char* name : {"adapter_model.safetensors", "model-1.safetensors", "model-1-of-2.bin", "model", "",
                           "shard-model-1-of-2.safetensors", "model-1-of-2-3-4.safetensors"}) {
    EXPECT_FALSE(is_model_file_name(name)) << name;
  }
}

TEST(ModelCommit, FreshDirectoryGetsTorchNames) {
  ModelStorage disk;
  put(disk, "config.json", "{}");
  const auto names = save_model(disk, 1);
  EXPECT_EQ(names[0], "model-00001-of-00002.safetensors");
  EXPECT_EQ(names_in(disk), sorted({"config.json", names[0], names[1], std::string(kIndex)}));
}

TEST(ModelCommit, LaterSaveReplacesWithNewNames) {
  ModelStorage disk;
  put(disk, "adapter_model.safetensors", foreign_file("mine"));
  put(disk, "model.safetensors", foreign_file("stale"));
  const auto first = save_model(disk, 1);
  EXPECT_FALSE(holds(disk, "model.safetensors"));
  const auto second = save_model(disk, 2);
  EXPECT_NE(first[0], second[0]);
  EXPECT_EQ(names_in(disk), sorted({"adapter_model.safetensors", second[0], second[1], std::string(kIndex)}));
  EXPECT_EQ(read_index_in_place(disk).value().index.save_id, to_hex(model_save(2).save_id));
}

TEST(ModelCommit, IsSupersededByALaterSave) {
  ModelStorage disk;
  std::vector<std::string> winner;
  {
    OneModel loser(disk, model_save(1));
    winner = save_model(disk, 2);
    ASSERT_TRUE(loser.publish());
    const auto committed = loser.commit();
    ASSERT_FALSE(committed);
    EXPECT_EQ(committed.error().code(), ErrorCode::kSuperseded);
  }
  EXPECT_EQ(names_in(disk), sorted({winner[0], winner[1], std::string(kIndex)}));
}

TEST(ModelCommit, IsSupersededByAnotherJob) {
  for (const Kind kind : {Kind::kIndexed, Kind::kAlone, Kind::kShards}) {
    ModelStorage disk;
    ModelClaimOptions options;
    options.kind = kind;
    options.overwrite_with_shards = true;
    {
      auto loser = OneModel::make(disk, model_save(2), options);
      auto winner = OneModel::make(disk, model_save(1, kOtherJob), options);
      ASSERT_TRUE(loser && winner);
      ASSERT_TRUE(winner->publish());
      ASSERT_TRUE(winner->commit());
      ASSERT_TRUE(loser->publish());
      const auto committed = loser->commit();
      ASSERT_FALSE(committed);
      EXPECT_EQ(committed.error().code(), ErrorCode::kSuperseded);
    }
    EXPECT_EQ(read_index_in_place(disk).value().present, kind == Kind::kIndexed);
  }
}

TEST(ModelCommit, TheFilesOfASaveInFlightStay) {
  ModelStorage disk;
  OneModel other(disk, model_save(1));
  ASSERT_TRUE(other.publish());
  save_model(disk, 2);
  EXPECT_TRUE(holds(disk, other.names()[0]));
}

TEST(ModelCommit, RefusesAForbiddenOverwrite) {
  ModelStorage disk;
  save_model(disk, 1);
  ModelClaimOptions options;
  options.overwrite = false;
  const auto claimed = claim_model(disk, model_save(2), options);
  ASSERT_FALSE(claimed);
  EXPECT_EQ(claimed.error().code(), ErrorCode::kInvalidArgument);
}

TEST(ModelCommit, ShardsReplaceOnlyIfAllowed) {
  ModelStorage disk;
  ModelClaimOptions shards;
  shards.kind = Kind::kShards;
  const auto first = save_model(disk, 1, shards);
  EXPECT_EQ(names_in(disk), sorted(first));
  const auto claimed = claim_model(disk, model_save(2), shards);
  ASSERT_FALSE(claimed);
  EXPECT_NE(std::string(claimed.error().what()).find("shards without an index"), std::string::npos);
  EXPECT_NE(std::string(claimed.error().what()).find("new directory"), std::string::npos);
  EXPECT_EQ(names_in(disk), sorted(first));
  shards.overwrite_with_shards = true;
  const auto third = save_model(disk, 3, shards);
  EXPECT_EQ(names_in(disk), sorted(third));
  save_model(disk, 4);  // with an index
  const auto fifth = save_model(disk, 5, shards);
  EXPECT_EQ(names_in(disk), sorted(fifth));
}

TEST(ModelCommit, SingleFileReplacesAnIndexedSet) {
  ModelStorage disk;
  save_model(disk, 1);
  ModelClaimOptions alone;
  alone.kind = Kind::kAlone;
  save_model(disk, 2, alone);
  EXPECT_EQ(names_in(disk), std::vector<std::string>{"model.safetensors"});
  save_model(disk, 3, alone);
  EXPECT_EQ(names_in(disk), std::vector<std::string>{"model.safetensors"});
  EXPECT_EQ(origin_of_model_file(disk, "model.safetensors").value().save_id, model_save(3).save_id);
}

TEST(ModelCommit, OtherNameTouchesNothingElse) {
  ModelStorage disk;
  const auto set = save_model(disk, 1);
  ModelClaimOptions alone;
  alone.kind = Kind::kAlone;
  alone.file_name = "part.safetensors";
  save_model(disk, 2, alone);
  save_model(disk, 3, alone);
  EXPECT_EQ(names_in(disk), sorted({set[0], set[1], "part.safetensors", std::string(kIndex)}));
}

TEST(ModelCommit, NextSaveRemovesAKilledSave) {
  ModelStorage disk;
  OneModel killed(disk, model_save(1));
  ASSERT_TRUE(killed.publish());
  leave_dead_lease(disk, folder_of_save(model_save(1)));
  put(disk, "adapter_model.safetensors", foreign_file("mine"));
  const auto names = save_model(disk, 2);
  EXPECT_EQ(names_in(disk), sorted({names[0], names[1], "adapter_model.safetensors", std::string(kIndex)}));
}

// A power cut may leave a buffered file without its bytes.
TEST(ModelCommit, TornFilesOfADeadSaveGo) {
  ModelStorage disk;
  save_model(disk, 1);
  const auto before = names_in(disk);
  OneModel killed(disk, model_save(2));
  ASSERT_TRUE(killed.publish());
  ASSERT_TRUE(disk.remove(killed.names()[0]));
  put(disk, killed.names()[0], "torn");
  leave_dead_lease(disk, folder_of_save(model_save(2)));
  { ASSERT_TRUE(claim_model(disk, model_save(3))); }
  EXPECT_EQ(names_in(disk), before);
}

TEST(ModelCommit, UnremovableModelFailsTheSave) {
  ModelStorage disk;
  put(disk, "model.safetensors", foreign_file("stale"));
  FaultyModelStorage faulty(disk);
  faulty.unremovable = "model.safetensors";
  const auto saved = try_model(faulty, 1);
  ASSERT_FALSE(saved);
  EXPECT_NE(std::string(saved.error().what()).find("transformers"), std::string::npos);
  EXPECT_EQ(model_of_cairn(disk), 1u);
  ASSERT_TRUE(kill_saves(disk));
  { ASSERT_TRUE(claim_model(disk, model_save(2))); }
  EXPECT_FALSE(holds(disk, "model.safetensors"));
}

TEST(ModelCommit, UnremovableIndexFailsTheShards) {
  ModelStorage disk;
  save_model(disk, 1);
  FaultyModelStorage faulty(disk);
  faulty.unremovable = kIndex;
  ASSERT_FALSE(try_model(faulty, 2, of_kind(Kind::kShards)));
  EXPECT_EQ(model_of_cairn(disk), 1u);
  ASSERT_TRUE(kill_saves(disk));
  { ASSERT_TRUE(claim_model(disk, model_save(3))); }
  EXPECT_EQ(model_of_cairn(disk), 2u);
}

TEST(ModelCommit, ConcurrentShardsAreSuperseded) {
  for (const bool overwrite : {true, false}) {
    ModelStorage disk;
    ModelClaimOptions shards = of_kind(Kind::kShards);
    shards.overwrite = overwrite;
    {
      auto loser = OneModel::make(disk, model_save(1), shards);
      ASSERT_TRUE(loser);
      const auto winner = try_model(disk, 2, shards);
      ASSERT_TRUE(winner) << winner.error().what();
      ASSERT_TRUE(loser->publish());
      const auto committed = loser->commit();
      ASSERT_FALSE(committed);
      EXPECT_EQ(committed.error().code(), ErrorCode::kSuperseded);
    }
    EXPECT_EQ(model_of_cairn(disk), 2u);
  }
}

// Ends a save that was killed right after the rename of its single file, and whose sealed index a power cut has taken.
void end_save_without_index(ModelStorage& disk) {
  const SaveIdentity killed = model_save(1);
  ASSERT_TRUE(disk.make_folder(folder_of_save(killed)));
  leave_dead_lease(disk, folder_of_save(killed));
  put(disk, "model.safetensors", file_of(killed, {Kind::kAlone, 1}, "key", 3));
  std::vector<std::string> warnings;
  ASSERT_TRUE(end_dead_model_save(disk, killed.save_id, StorageClock::of_this_host(), warnings));
  EXPECT_TRUE(warnings.empty()) << testing::PrintToString(warnings);
}

TEST(ModelCommit, LostIndexOfASingleFileIsMade) {
  ModelStorage disk;
  end_save_without_index(disk);
  const std::string index = storage::read_small(disk, kIndex, 1000).value();
  EXPECT_NE(index.find("\"total_size\": 12"), std::string::npos) << index;
  EXPECT_EQ(model_of_cairn(disk), 1u);
  EXPECT_EQ(names_in(disk), (std::vector<std::string>{"model.safetensors", std::string(kIndex)}));
}

TEST(ModelCommit, ForeignIndexDuringASaveStays) {
  ModelStorage disk;
  const std::string index = R"({"weight_map": {"theirs": "model.safetensors"}})";
  put(disk, std::string(kIndex), index);
  end_save_without_index(disk);
  EXPECT_EQ(storage::read_small(disk, kIndex, 1000).value(), index);
  EXPECT_EQ(names_in(disk), (std::vector<std::string>{"model.safetensors", std::string(kIndex)}));
}

TEST(ModelCommit, ForeignModelDuringASaveStays) {
  for (const Kind kind : {Kind::kIndexed, Kind::kAlone, Kind::kShards}) {
    ModelStorage disk;
    const std::string theirs = foreign_file("theirs");
    {
      auto save = OneModel::make(disk, model_save(1), of_kind(kind));
      ASSERT_TRUE(save);
      ASSERT_TRUE(save->publish());
      put(disk, "model.safetensors", theirs);
      EXPECT_FALSE(save->commit());
    }
    EXPECT_EQ(names_in(disk), std::vector<std::string>{"model.safetensors"});
    EXPECT_EQ(storage::read_small(disk, "model.safetensors", theirs.size()).value(), theirs);
  }
}

TEST(ModelCommit, DamagedIndexRemovesNoFile) {
  ModelStorage disk;
  put(disk, "model.safetensors", foreign_file("stale"));
  FaultyModelStorage faulty(disk);
  faulty.unremovable = "model.safetensors";
  ASSERT_FALSE(try_model(faulty, 1));  // committed, but not cleaned up
  ASSERT_TRUE(kill_saves(disk));
  const auto before = names_in(disk);
  faulty.unremovable.clear();
  faulty.unreadable = kIndex;
  EXPECT_FALSE(claim_model(faulty, model_save(2)));
  EXPECT_EQ(names_in(disk), before);
  faulty.unreadable.clear();
  faulty.go_stale(3);
  {
    ASSERT_TRUE(claim_model(faulty, model_save(3)));
    EXPECT_EQ(model_of_cairn(disk), 1u);
  }
  ASSERT_FALSE(holds(disk, "model.safetensors"));
  ModelStorage damaged;
  OneModel killed(damaged, model_save(1));
  ASSERT_TRUE(killed.publish());
  leave_dead_lease(damaged, folder_of_save(model_save(1)));
  put(damaged, std::string(kIndex), "{");
  OneModel save(damaged, model_save(2));
  EXPECT_TRUE(holds(damaged, killed.names()[0]));
  ASSERT_TRUE(save.publish());
  const auto committed = save.commit();
  ASSERT_TRUE(committed) << committed.error().what();
  ASSERT_EQ(committed->warnings.size(), 1u);
  EXPECT_NE(committed->warnings[0].find("the index is damaged"), std::string::npos);
}

TEST(ModelCommit, UnlistableDirectoryFailsEarly) {
  ModelStorage disk;
  save_model(disk, 1);
  FaultyModelStorage faulty(disk);
  auto save = OneModel::make(faulty, model_save(2), {});
  ASSERT_TRUE(save);
  ASSERT_TRUE(save->publish());
  faulty.lists = false;
  EXPECT_FALSE(save->commit());
  EXPECT_EQ(model_of_cairn(disk), 1u);
}

TEST(ModelCommit, UnreadShardsAreNotGivenUp) {
  ModelStorage disk;
  save_model(disk, 1);
  FaultyModelStorage faulty(disk);
  faulty.unremovable = kIndex;
  ASSERT_FALSE(try_model(faulty, 2, of_kind(Kind::kShards)));
  ASSERT_TRUE(kill_saves(disk));
  faulty.unremovable.clear();
  faulty.unreadable = model_file_name({model_save(2), false}, {1, 1, 2});
  ASSERT_TRUE(holds(disk, faulty.unreadable));
  const auto claimed = claim_model(faulty, model_save(3));
  ASSERT_FALSE(claimed);
  EXPECT_EQ(claimed.error().code(), ErrorCode::kUnavailable);
  { ASSERT_TRUE(claim_model(disk, model_save(4))); }
  EXPECT_EQ(model_of_cairn(disk), 2u);
}

TEST(ModelCommit, FileChangedSinceCommitStays) {
  ModelStorage disk;
  put(disk, "model.safetensors", foreign_file("stale"));
  FaultyModelStorage faulty(disk);
  faulty.unremovable = "model.safetensors";
  ASSERT_FALSE(try_model(faulty, 1));
  ASSERT_TRUE(kill_saves(disk));
  ASSERT_TRUE(disk.remove("model.safetensors"));
  put(disk, "model.safetensors", foreign_file("new"));
  { ASSERT_TRUE(claim_model(disk, model_save(2))); }
  EXPECT_TRUE(holds(disk, "model.safetensors"));
}

TEST(ModelCommit, RefusesShardsBesideForeignFile) {
  ModelStorage disk;
  put(disk, "adapter_model.safetensors", foreign_file("mine"));
  const auto claimed = claim_model(disk, model_save(1), of_kind(Kind::kShards));
  ASSERT_FALSE(claimed);
  EXPECT_NE(std::string(claimed.error().what()).find("adapter_model"), std::string::npos);
  EXPECT_NE(std::string(claimed.error().what()).find("into a new directory"), std::string::npos);
}

TEST(ModelCommit, AModelOfLinksIsRefused) {
  storage::ScratchDirectory scratch;
  auto disk = storage::PosixStorage::open_directory(scratch.path()).value();
  std::filesystem::create_symlink("/dev/null", scratch.path() / "model.safetensors");
  for (const Kind kind : {Kind::kIndexed, Kind::kAlone, Kind::kShards}) {
    const auto claimed = claim_model(*disk, model_save(1), of_kind(kind));
    ASSERT_FALSE(claimed);
    EXPECT_NE(std::string(claimed.error().what()).find("links"), std::string::npos);
  }
}

TEST(ModelCommit, SingleFileStaysWithoutAnAnswer) {
  ModelStorage disk;
  FaultyModelStorage faulty(disk);
  faulty.lost_answer = "model.safetensors";
  EXPECT_FALSE(try_model(faulty, 1, of_kind(Kind::kAlone)));
  EXPECT_EQ(model_of_cairn(disk), 1u);
}

// The call that makes the file `unanswered` succeeds, and its answer is lost.
class LostAnswers final : public storage::ViewStorage {
 public:
  using ViewStorage::ViewStorage;
  Result<void> create_whole(std::string_view name, std::string_view bytes, Durability durability) override {
    CAIRN_TRY(ViewStorage::create_whole(name, bytes, durability));
    return answer(name);
  }
  Result<void> replace(std::string_view from, std::string_view to) override {
    CAIRN_TRY(ViewStorage::replace(from, to));
    return answer(to);
  }
  std::string unanswered;

 private:
  Result<void> answer(std::string_view name) const {
    return name == unanswered ? Error::from_errno(EIO, "the answer is lost") : Result<void>();
  }
};

TEST(ModelCommit, AnIndexMovesWithoutAnAnswer) {
  ModelStorage disk;
  save_model(disk, 1);
  LostAnswers view(disk);
  view.unanswered = kIndex;
  save_model(view, 2);
  EXPECT_EQ(model_of_cairn(disk), 2u);
}

TEST(ModelCommit, ShardsStayWithoutAnAnswer) {
  ModelStorage disk;
  save_model(disk, 1);
  LostAnswers view(disk);
  view.unanswered = folder_of_save(model_save(2)) + "/" + std::string(kCommittedName);
  const auto saved = try_model(view, 2, of_kind(Kind::kShards));
  ASSERT_FALSE(saved);
  EXPECT_NE(std::string(saved.error().what()).find("it is unknown"), std::string::npos) << saved.error().what();
  ASSERT_TRUE(kill_saves(disk));
  { ASSERT_TRUE(claim_model(disk, model_save(3))); }
  EXPECT_EQ(model_of_cairn(disk), 2u);
}

TEST(ModelCommit, AReplacedFileThatStaysIsSaid) {
  ModelStorage disk;
  const auto old = save_model(disk, 1);
  FaultyModelStorage faulty(disk);
  faulty.unremovable = old[1];
  OneModel save(faulty, model_save(2));
  ASSERT_TRUE(save.publish());
  const auto committed = save.commit();
  ASSERT_TRUE(committed) << committed.error().what();
  EXPECT_EQ(committed->warnings.size(), 1u);
  EXPECT_EQ(model_of_cairn(disk), 2u);
}

// The save committed, and has not removed its folder.
TEST(ModelCommit, ASingleFileCountsOnceCommitted) {
  ModelStorage disk;
  const auto lease = Lease::take_with_folder(disk, model_save(1));
  ASSERT_TRUE(lease);
  put(disk, "model.safetensors", file_of(model_save(1), {Kind::kAlone, 1}, "key1"));
  ModelClaimOptions options;
  options.overwrite = false;
  EXPECT_FALSE(claim_model(disk, model_save(2), options));
}

TEST(ModelCommit, AnEverChangingIndexFails) {
  ModelStorage disk;
  save_model(disk, 1);
  FaultyModelStorage faulty(disk);
  faulty.go_stale(1000);
  const auto index = read_index_in_place(faulty);
  ASSERT_FALSE(index);
  EXPECT_EQ(index.error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(index.error().file(), kIndex);
}

TEST(ModelCommit, SingleBesideForeignHasAnIndex) {
  ModelStorage disk;
  put(disk, "adapter_model.safetensors", foreign_file("mine"));
  save_model(disk, 1, of_kind(Kind::kAlone));
  EXPECT_EQ(read_index_in_place(disk).value().index.files[0].second, "model.safetensors");
  EXPECT_EQ(model_of_cairn(disk), 1u);
}

TEST(ModelCommit, SingleFileTakesNoNameOfASet) {
  ModelStorage disk;
  ModelClaimOptions alone = of_kind(Kind::kAlone);
  alone.file_name = "model-00001-of-00001.safetensors";
  EXPECT_FALSE(claim_model(disk, model_save(1), alone));
  const auto set = save_model(disk, 2);
  put(disk, std::string("odd.safetensors"), foreign_file("odd"));
  ASSERT_TRUE(disk.remove(kIndex));
  put(disk, std::string(kIndex), R"({"weight_map": {"odd": "odd.safetensors"}})");
  alone.file_name = "odd.safetensors";
  EXPECT_FALSE(claim_model(disk, model_save(3), alone));
}

TEST(ModelCommit, RefusesAModelBesideACheckpoint) {
  ModelStorage disk;
  commit_one(disk, save_number(1));
  const auto claimed = claim_model(disk, model_save(2));
  ASSERT_FALSE(claimed);
  EXPECT_EQ(claimed.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(std::string(claimed.error().what()).find("files of a DCP checkpoint"), std::string::npos);
}

TEST(ModelCommit, ARefusalNamesTheFilesInTheWay) {
  ModelStorage disk;
  const auto set = save_model(disk, 1);
  ModelClaimOptions alone = of_kind(Kind::kAlone);
  alone.file_name = kSingleModelName;
  const auto refused = claim_model(disk, model_save(2), alone);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().file(), "model.safetensors");
  EXPECT_EQ(refused.error().actual(), set[0] + ", " + set[1] + ", " + std::string(kIndex));
}

TEST(ModelCommit, IgnoresCopiedMetadata) {
  ModelStorage disk;
  safetensors::Header header;
  header.tensors.push_back({"key", DType::kFloat32, Extents{0}, 0, 0});
  header.metadata = {{std::string(safetensors::kSaveIdName), to_hex(model_save(1).save_id)},
                     {std::string(safetensors::kFileSetName), "index of 2 files"}};
  put(disk, "model.safetensors", safetensors::render_header(header).value());
  const auto origin = origin_of_model_file(disk, "model.safetensors").value();
  EXPECT_FALSE(origin.save_id);
  EXPECT_FALSE(origin.set);
}

TEST(ModelCommit, EarlierSaveHidesNoForeignFile) {
  ModelStorage disk;
  {
    OneModel later(disk, model_save(2));
    const auto earlier = save_model(disk, 1);
    put(disk, "model.safetensors", foreign_file("theirs"));
    ASSERT_TRUE(later.publish());
    const auto committed = later.commit();
    ASSERT_FALSE(committed);
    EXPECT_EQ(committed.error().code(), ErrorCode::kSuperseded);
  }
  EXPECT_TRUE(holds(disk, "model.safetensors"));
  EXPECT_EQ(read_index_in_place(disk).value().index.save_id, to_hex(model_save(1).save_id));
}

// A save is taken for dead and cleaned up, the cleaner is killed, and the save goes on.
TEST(ModelCommit, CleanedUpSaveLosesNoModel) {
  for (std::uint64_t crash_at = 0; crash_at < 30; ++crash_at) {
    SCOPED_TRACE(crash_at);
    ModelStorage disk;
    save_model(disk, 1);
    {
      OneModel paused(disk, model_save(2));
      ASSERT_TRUE(paused.publish());
      leave_dead_lease(disk, folder_of_save(model_save(2)));
      disk.crash_at(disk.operation_count() + crash_at);
      (void)claim_model(disk, model_save(3));
      disk.outlive_crash();
      (void)paused.commit();
    }
    ASSERT_TRUE(model_of_cairn(disk));
  }
}

TEST(ModelCommit, RemovesOnlyReplacedIfLockless) {
  ModelStorage disk;
  save_model(disk, 1);
  FaultyModelStorage faulty(disk);
  faulty.locks = false;
  const auto names = try_model(faulty, 2);
  ASSERT_TRUE(names);
  EXPECT_EQ(names_in(disk), sorted({(*names)[0], (*names)[1], std::string(kIndex)}));
}

}  // namespace
}  // namespace cairn::commit

// The commit of a safetensors model, step by step, on a model disk.
#include "commit/model_transaction.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "commit/model_in_place.h"
#include "commit/rank_files.h"
#include "commit/testing/dead_lease.h"
#include "commit/testing/faulty_model_storage.h"
#include "commit/testing/one_save.h"
#include "format/safetensors/checksums.h"
#include "format/safetensors/header.h"
#include "storage/posix/posix_storage.h"
#include "storage/testing/model_storage.h"
#include "storage/testing/scratch_directory.h"

namespace cairn::commit {
namespace {

using safetensors::FileSet;
using storage::ModelStorage;
using Kind = FileSet::Kind;

constexpr std::string_view kIndex = safetensors::kIndexName;

SaveIdentity model_save(std::uint64_t number) {
  SaveIdentity identity = save_number(number);
  identity.form = SaveForm::kModel;
  return identity;
}

// A file with the empty tensor `key`.
std::string file_of(const SaveId& save_id, const FileSet& set, const std::string& key) {
  safetensors::Header header;
  header.tensors.push_back({key, DType::kFloat32, Extents{0}, 0, 0});
  header.metadata = {{std::string(safetensors::kChecksumsName),
                      safetensors::blank_checksums(safetensors::coverage_of(header.tensors))},
                     {std::string(safetensors::kSaveIdName), to_hex(save_id)},
                     {std::string(safetensors::kFileSetName), safetensors::render_file_set(set)}};
  std::string text =
      safetensors::render_header(header, {safetensors::kChecksummedDataAlignment, safetensors::kChecksummedSpacesMin})
          .value();
  safetensors::write_checksums(std::as_writable_bytes(std::span(text)), {});
  return text;
}

// A file of another program.
std::string foreign_file(const std::string& key) {
  safetensors::Header header;
  header.tensors.push_back({key, DType::kFloat32, Extents{0}, 0, 0});
  return safetensors::render_header(header).value();
}

void put(ModelStorage& disk, const std::string& name, const std::string& text) {
  ASSERT_TRUE(disk.create_whole(name, text, Durability::kDurable));
}

// A save of two files with an index, of two shards, or of one file.
class OneModel {
 public:
  static Result<OneModel> make(storage::Storage& disk, const SaveIdentity& identity, const ModelClaimOptions& options) {
    OneModel save;
    save.kind_ = options.kind;
    CAIRN_TRY_ASSIGN(save.transaction_, ModelTransaction::claim(disk, identity, options));
    save.files_ = std::make_unique<RankFiles>(disk, identity);
    const FileSet set{options.kind, options.kind == Kind::kAlone ? 1U : 2U};
    for (std::uint32_t i = 1; i <= set.file_count; ++i) {
      std::string name = options.file_name;
      if (set.kind == Kind::kIndexed) name = model_file_name(save.transaction_->ticket(), {i, 2, {}});
      if (set.kind == Kind::kShards) name = model_file_name(save.transaction_->ticket(), {1, 1, i});
      const std::string key = "key" + std::to_string(i);
      CAIRN_TRY_ASSIGN(const std::string private_name, save.files_->private_name(name));
      CAIRN_TRY(disk.create_whole(private_name, file_of(identity.save_id, set, key), Durability::kDurable));
      save.content_.files.push_back(name);
      save.content_.index.files.emplace_back(key, name);
    }
    save.transaction_->expect(save.content_.files);
    return save;
  }
  OneModel(storage::Storage& disk, const SaveIdentity& identity) : OneModel(make(disk, identity, {}).value()) {}

  const std::vector<std::string>& names() const { return content_.files; }
  Result<void> publish() {
    if (kind_ == Kind::kAlone) return {};
    return files_->publish(content_.files, Durability::kDurable);
  }
  Result<CommitReport> commit() {
    files_->hand_over();
    return transaction_->commit(content_, Durability::kDurable);
  }

 private:
  OneModel() = default;
  Kind kind_ = Kind::kIndexed;
  std::unique_ptr<ModelTransaction> transaction_;
  std::unique_ptr<RankFiles> files_;
  ModelContent content_;
};

Result<std::vector<std::string>> try_model(storage::Storage& disk, std::uint64_t number,
                                           const ModelClaimOptions& options = {}) {
  CAIRN_TRY_ASSIGN(OneModel save, OneModel::make(disk, model_save(number), options));
  CAIRN_TRY(save.publish());
  CAIRN_TRY(save.commit());
  return save.names();
}

std::vector<std::string> save_model(storage::Storage& disk, std::uint64_t number,
                                    const ModelClaimOptions& options = {}) {
  const auto saved = try_model(disk, number, options);
  EXPECT_TRUE(saved) << saved.error().what();
  return saved ? *saved : std::vector<std::string>{"", ""};
}

std::vector<std::string> sorted(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  return names;
}

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

TEST(ModelCommit, AFreshDirectoryGetsTheNamesOfTorch) {
  ModelStorage disk;
  put(disk, "config.json", "{}");
  const auto names = save_model(disk, 1);
  EXPECT_EQ(names[0], "model-00001-of-00002.safetensors");
  EXPECT_EQ(names_in(disk), sorted({"config.json", names[0], names[1], std::string(kIndex)}));
}

TEST(ModelCommit, ALaterSaveNeverReusesANameAndRemovesTheReplacedFiles) {
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

TEST(ModelCommit, ASecondSaveThatBeganBeforeTheCommitOfTheFirstIsSupersededAndWithdrawn) {
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

TEST(ModelCommit, TheFilesOfASaveInFlightStay) {
  ModelStorage disk;
  OneModel other(disk, model_save(1));
  ASSERT_TRUE(other.publish());
  save_model(disk, 2);
  EXPECT_TRUE(holds(disk, other.names()[0]));
}

TEST(ModelCommit, WithoutOverwriteAModelIsAnError) {
  ModelStorage disk;
  save_model(disk, 1);
  ModelClaimOptions options;
  options.overwrite = false;
  const auto claimed = ModelTransaction::claim(disk, model_save(2), options);
  ASSERT_FALSE(claimed);
  EXPECT_EQ(claimed.error().code(), ErrorCode::kInvalidArgument);
}

TEST(ModelCommit, ShardsReplaceAModelOnlyIfAllowed) {
  ModelStorage disk;
  ModelClaimOptions shards;
  shards.kind = Kind::kShards;
  const auto first = save_model(disk, 1, shards);
  EXPECT_EQ(names_in(disk), sorted(first));
  const auto claimed = ModelTransaction::claim(disk, model_save(2), shards);
  ASSERT_FALSE(claimed);
  EXPECT_NE(std::string(claimed.error().what()).find("new directory"), std::string::npos);
  EXPECT_EQ(names_in(disk), sorted(first));
  shards.overwrite_with_shards = true;
  EXPECT_EQ(names_in(disk), sorted(save_model(disk, 3, shards)));
  save_model(disk, 4);  // with an index
  EXPECT_EQ(names_in(disk), sorted(save_model(disk, 5, shards)));
}

TEST(ModelCommit, ASingleFileReplacesASetWithItsIndex) {
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

TEST(ModelCommit, ASingleFileOfAnotherNameTouchesNothingElse) {
  ModelStorage disk;
  const auto set = save_model(disk, 1);
  ModelClaimOptions alone;
  alone.kind = Kind::kAlone;
  alone.file_name = "part.safetensors";
  save_model(disk, 2, alone);
  save_model(disk, 3, alone);
  EXPECT_EQ(names_in(disk), sorted({set[0], set[1], "part.safetensors", std::string(kIndex)}));
}

TEST(ModelCommit, TheNextSaveRemovesTheFilesOfAKilledSave) {
  ModelStorage disk;
  OneModel killed(disk, model_save(1));
  ASSERT_TRUE(killed.publish());
  leave_dead_lease(disk, folder_of_save(model_save(1)));
  put(disk, "adapter_model.safetensors", foreign_file("mine"));
  const auto names = save_model(disk, 2);
  EXPECT_EQ(names_in(disk), sorted({names[0], names[1], "adapter_model.safetensors", std::string(kIndex)}));
}

// The single save of `names`; nullopt for files of several saves, and for a file without a save.
std::optional<std::uint64_t> save_of(const ModelStorage& disk, const std::vector<std::string>& names) {
  std::optional<SaveId> save;
  for (const std::string& name : names) {
    const auto origin = origin_of_model_file(disk, name);
    if (!origin || !origin->save_id || (save && *save != *origin->save_id)) return std::nullopt;
    save = origin->save_id;
  }
  return save ? std::optional(save->low) : std::nullopt;
}

// The save whose whole model Cairn finds (checkpointer/safetensors_model.cc).
std::optional<std::uint64_t> model_of_cairn(const ModelStorage& disk) {
  const IndexInPlace index = read_index_in_place(disk).value();
  std::vector<std::string> names;
  if (index.present) {
    for (const auto& [key, name] : index.index.files) names.push_back(name);
    const auto save = index.readable ? save_of(disk, names) : std::nullopt;
    const std::string& id = index.index.save_id;
    return save && (id.empty() || id == to_hex(model_save(*save).save_id)) ? save : std::nullopt;
  }
  std::optional<FileSet> set;
  for (const std::string& name : names_in(disk)) {
    const auto origin = name.ends_with(kModelSuffix) ? origin_of_model_file(disk, name) : ModelFileOrigin();
    if (!name.ends_with(kModelSuffix) || (origin && origin->set && origin->set->kind == Kind::kIndexed)) continue;
    if (!origin || !origin->set || (set && !(*set == *origin->set))) return std::nullopt;
    set = origin->set;
    names.push_back(name);
  }
  return set && names.size() == set->file_count ? save_of(disk, names) : std::nullopt;
}

std::optional<std::uint64_t> model_of_transformers(const ModelStorage& disk) {
  return holds(disk, "model.safetensors") ? save_of(disk, {"model.safetensors"}) : model_of_cairn(disk);
}

// Whether all files of the save are there.
bool is_whole(const ModelStorage& disk, std::uint64_t number, Kind kind) {
  std::size_t count = 0;
  for (const std::string& name : names_in(disk)) {
    const auto origin = name.ends_with(kModelSuffix) ? origin_of_model_file(disk, name) : ModelFileOrigin();
    count += origin && origin->save_id == model_save(number).save_id;
  }
  const IndexInPlace index = read_index_in_place(disk).value();
  const bool has_index = index.readable && index.index.save_id == to_hex(model_save(number).save_id);
  return count == (kind == Kind::kAlone ? 1 : 2) && (kind != Kind::kIndexed || has_index);
}

// Makes all saves in the directory look killed. False if a power cut has left a folder without its lease: the next save
// then does not recognise the leftovers.
bool kill_saves(ModelStorage& disk) {
  for (const std::string& name : names_in(disk)) {
    if (!save_id_of_folder(name, SaveForm::kModel)) continue;
    if (!disk.open(name + "/lease", false)) return false;
    leave_dead_lease(disk, name);
  }
  return true;
}

constexpr std::uint64_t kSeeds = 24;  // 0: without a power cut

// Overwrites a model of save 1 by save 2 with a crash at each operation, with and without a power cut. Every reader
// then finds a whole model, which is that of save 2 if the save was reported as successful. A claim makes all readers
// agree, and the next save removes all leftovers.
void crash_everywhere(const ModelClaimOptions& first, const ModelClaimOptions& second) {
  const bool has_shards = first.kind == Kind::kShards || second.kind == Kind::kShards;
  bool done = false;
  for (std::uint64_t crash_at = 0; !done; ++crash_at) {
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
      SCOPED_TRACE(testing::Message() << "crash_at=" << crash_at << " seed=" << seed);
      ModelStorage disk;
      if (!has_shards) put(disk, "adapter_model.safetensors", foreign_file("mine"));
      save_model(disk, 1, first);
      disk.crash_at(disk.operation_count() + crash_at);
      const bool ended = try_model(disk, 2, second).has_value();
      done = ended && !disk.fault_fired();
      if (seed == 0) disk.outlive_crash();
      if (seed != 0) disk.lose_power(seed);
      if (ended) {
        ASSERT_EQ(model_of_cairn(disk), 2u);
      }
      if (has_shards) {
        ASSERT_TRUE(is_whole(disk, 1, first.kind) || is_whole(disk, 2, second.kind)) << "both models are lost";
      } else {
        ASSERT_TRUE(model_of_cairn(disk));
        ASSERT_TRUE(model_of_transformers(disk));
        if (ended) ASSERT_EQ(model_of_transformers(disk), 2u);
      }
      const bool recognised = kill_saves(disk);
      ModelClaimOptions any;
      ASSERT_TRUE(ModelTransaction::claim(disk, model_save(4), any));
      if (recognised || !has_shards) ASSERT_TRUE(model_of_cairn(disk));
      if (recognised && !has_shards) ASSERT_EQ(model_of_cairn(disk), model_of_transformers(disk));
      if (ended) ASSERT_EQ(model_of_cairn(disk), 2u);
      const auto names = save_model(disk, 3, second);
      std::vector<std::string> expected = names;
      if (!has_shards) expected.emplace_back("adapter_model.safetensors");
      if (!has_shards || second.kind == Kind::kIndexed) expected.emplace_back(kIndex);
      const std::vector<std::string> left = names_in(disk);
      if (recognised) ASSERT_EQ(left, sorted(expected));
    }
  }
}

TEST(ModelCommit, ACrashAtAnyOperationLeavesAWholeModel) {
  ModelClaimOptions set, alone;
  alone.kind = Kind::kAlone;
  crash_everywhere(set, set);
  crash_everywhere(alone, set);
  crash_everywhere(set, alone);
  crash_everywhere(alone, alone);
}

TEST(ModelCommit, ACrashAtAnyOperationWithShardsLosesNoModel) {
  ModelClaimOptions set, alone, shards;
  alone.kind = Kind::kAlone;
  shards.kind = Kind::kShards;
  shards.overwrite_with_shards = true;
  crash_everywhere(set, shards);
  crash_everywhere(alone, shards);
  crash_everywhere(shards, shards);
  crash_everywhere(shards, set);
  crash_everywhere(shards, alone);
}

ModelClaimOptions of_kind(Kind kind) {
  ModelClaimOptions options;
  options.kind = kind;
  options.overwrite_with_shards = true;
  return options;
}

TEST(ModelCommit, AModelFileThatCannotBeRemovedMakesTheSaveFail) {
  ModelStorage disk;
  put(disk, "model.safetensors", foreign_file("stale"));
  FaultyModelStorage faulty(disk);
  faulty.unremovable = "model.safetensors";
  const auto saved = try_model(faulty, 1);
  ASSERT_FALSE(saved);
  EXPECT_NE(std::string(saved.error().what()).find("transformers"), std::string::npos);
  EXPECT_EQ(model_of_cairn(disk), 1u);
  ASSERT_TRUE(kill_saves(disk));
  { ASSERT_TRUE(ModelTransaction::claim(disk, model_save(2))); }
  EXPECT_FALSE(holds(disk, "model.safetensors"));
}

TEST(ModelCommit, AnIndexThatCannotBeRemovedMakesTheShardsFailAndTheNextSaveRemovesTheIndex) {
  ModelStorage disk;
  save_model(disk, 1);
  FaultyModelStorage faulty(disk);
  faulty.unremovable = kIndex;
  ASSERT_FALSE(try_model(faulty, 2, of_kind(Kind::kShards)));
  EXPECT_EQ(model_of_cairn(disk), 1u);
  ASSERT_TRUE(kill_saves(disk));
  { ASSERT_TRUE(ModelTransaction::claim(disk, model_save(3))); }
  EXPECT_EQ(model_of_cairn(disk), 2u);
}

TEST(ModelCommit, OfTwoSavesOfShardsThatBeginTogetherTheSecondIsSuperseded) {
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

TEST(ModelCommit, AModelWrittenByAnotherProgramDuringTheSaveStays) {
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

TEST(ModelCommit, UnderADamagedOrUnreadableIndexNoFileIsRemoved) {
  ModelStorage disk;
  put(disk, "model.safetensors", foreign_file("stale"));
  FaultyModelStorage faulty(disk);
  faulty.unremovable = "model.safetensors";
  ASSERT_FALSE(try_model(faulty, 1));  // committed, but not cleaned up
  ASSERT_TRUE(kill_saves(disk));
  const auto before = names_in(disk);
  faulty.unremovable.clear();
  faulty.unreadable = kIndex;
  EXPECT_FALSE(ModelTransaction::claim(faulty, model_save(2)));
  EXPECT_EQ(names_in(disk), before);
  faulty.unreadable.clear();
  faulty.go_stale(3);
  {
    ASSERT_TRUE(ModelTransaction::claim(faulty, model_save(3)));
    EXPECT_EQ(model_of_cairn(disk), 1u);
  }
  ASSERT_FALSE(holds(disk, "model.safetensors"));
  ModelStorage damaged;
  OneModel killed(damaged, model_save(1));
  ASSERT_TRUE(killed.publish());
  leave_dead_lease(damaged, folder_of_save(model_save(1)));
  put(damaged, std::string(kIndex), "{");
  { ASSERT_TRUE(ModelTransaction::claim(damaged, model_save(2))); }
  EXPECT_TRUE(holds(damaged, killed.names()[0]));
}

TEST(ModelCommit, ADirectoryThatCannotBeListedFailsTheSaveBeforeItsCommit) {
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

TEST(ModelCommit, AFileThatHasChangedSinceTheCommitIsNotRemoved) {
  ModelStorage disk;
  put(disk, "model.safetensors", foreign_file("stale"));
  FaultyModelStorage faulty(disk);
  faulty.unremovable = "model.safetensors";
  ASSERT_FALSE(try_model(faulty, 1));
  ASSERT_TRUE(kill_saves(disk));
  ASSERT_TRUE(disk.remove("model.safetensors"));
  put(disk, "model.safetensors", foreign_file("new"));
  { ASSERT_TRUE(ModelTransaction::claim(disk, model_save(2))); }
  EXPECT_TRUE(holds(disk, "model.safetensors"));
}

TEST(ModelCommit, ShardsBesideAFileOfAnotherProgramAreRefused) {
  ModelStorage disk;
  put(disk, "adapter_model.safetensors", foreign_file("mine"));
  const auto claimed = ModelTransaction::claim(disk, model_save(1), of_kind(Kind::kShards));
  ASSERT_FALSE(claimed);
  EXPECT_NE(std::string(claimed.error().what()).find("adapter_model"), std::string::npos);
}

TEST(ModelCommit, AModelOfLinksIsRefused) {
  storage::ScratchDirectory scratch;
  auto disk = storage::PosixStorage::open_directory(scratch.path()).value();
  std::filesystem::create_symlink("/dev/null", scratch.path() / "model.safetensors");
  for (const Kind kind : {Kind::kIndexed, Kind::kAlone, Kind::kShards}) {
    const auto claimed = ModelTransaction::claim(*disk, model_save(1), of_kind(kind));
    ASSERT_FALSE(claimed);
    EXPECT_NE(std::string(claimed.error().what()).find("links"), std::string::npos);
  }
}

TEST(ModelCommit, ASingleFileWhoseRenameGotNoAnswerStays) {
  ModelStorage disk;
  FaultyModelStorage faulty(disk);
  faulty.lost_answer = "model.safetensors";
  EXPECT_FALSE(try_model(faulty, 1, of_kind(Kind::kAlone)));
  EXPECT_EQ(model_of_cairn(disk), 1u);
}

TEST(ModelCommit, ASingleFileBesideAFileOfAnotherProgramKeepsAnIndex) {
  ModelStorage disk;
  put(disk, "adapter_model.safetensors", foreign_file("mine"));
  save_model(disk, 1, of_kind(Kind::kAlone));
  EXPECT_EQ(read_index_in_place(disk).value().index.files[0].second, "model.safetensors");
  EXPECT_EQ(model_of_cairn(disk), 1u);
}

TEST(ModelCommit, ASingleFileNeverTakesTheNameOfAFileOfSeveral) {
  ModelStorage disk;
  ModelClaimOptions alone = of_kind(Kind::kAlone);
  alone.file_name = "model-00001-of-00001.safetensors";
  EXPECT_FALSE(ModelTransaction::claim(disk, model_save(1), alone));
  const auto set = save_model(disk, 2);
  put(disk, std::string("odd.safetensors"), foreign_file("odd"));
  ASSERT_TRUE(disk.remove(kIndex));
  put(disk, std::string(kIndex), R"({"weight_map": {"odd": "odd.safetensors"}})");
  alone.file_name = "odd.safetensors";
  EXPECT_FALSE(ModelTransaction::claim(disk, model_save(3), alone));
}

TEST(ModelCommit, MetadataCopiedByAnotherProgramIsIgnored) {
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

// A save is taken for dead and cleaned up, the cleaner is killed, and the save goes on.
TEST(ModelCommit, ASaveThatWasCleanedUpAtAnyPointNeverCommitsWithoutItsFiles) {
  for (std::uint64_t crash_at = 0; crash_at < 30; ++crash_at) {
    SCOPED_TRACE(crash_at);
    ModelStorage disk;
    save_model(disk, 1);
    {
      OneModel paused(disk, model_save(2));
      ASSERT_TRUE(paused.publish());
      leave_dead_lease(disk, folder_of_save(model_save(2)));
      disk.crash_at(disk.operation_count() + crash_at);
      (void)ModelTransaction::claim(disk, model_save(3));
      disk.outlive_crash();
      (void)paused.commit();
    }
    ASSERT_TRUE(model_of_cairn(disk));
  }
}

TEST(ModelCommit, WithoutLocksASaveRemovesOnlyReplacedFiles) {
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

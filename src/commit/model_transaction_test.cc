// The commit of a safetensors model, step by step, on a model disk.
#include "commit/model_transaction.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "commit/rank_files.h"
#include "commit/testing/dead_lease.h"
#include "commit/testing/one_save.h"
#include "format/safetensors/checksums.h"
#include "format/safetensors/header.h"
#include "storage/testing/model_storage.h"

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
  header.metadata = {{std::string(safetensors::kSaveIdName), to_hex(save_id)},
                     {std::string(safetensors::kFileSetName), safetensors::render_file_set(set)}};
  return safetensors::render_header(header).value();
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

// The save whose whole model a reader finds: of the files that the index names, or of `model.safetensors`.
enum class Prefers : std::uint8_t { kTheIndex, kSingleFile };
std::optional<std::uint64_t> whole_model(const ModelStorage& disk, Prefers prefers) {
  const IndexInPlace index = read_index_in_place(disk).value();
  const bool takes_single = holds(disk, "model.safetensors") && (prefers == Prefers::kSingleFile || !index.present);
  if (!takes_single && !index.readable) return std::nullopt;
  std::optional<SaveId> save;
  if (takes_single) {
    const auto origin = origin_of_model_file(disk, "model.safetensors");
    return origin ? std::optional(origin->save_id->low) : std::nullopt;
  }
  for (const auto& [key, name] : index.index.files) {
    const auto origin = origin_of_model_file(disk, name);
    if (!origin || !origin->save_id || (save && *save != *origin->save_id)) return std::nullopt;
    save = origin->save_id;
  }
  return save ? std::optional(save->low) : std::nullopt;
}

// Overwrites a model of save 1 by save 2 with a crash at each operation, with and without a power cut. Every reader
// then finds a whole model, and the next save removes all leftovers.
void crash_everywhere(const ModelClaimOptions& first, const ModelClaimOptions& second) {
  bool done = false;
  for (std::uint64_t crash_at = 0; !done; ++crash_at) {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      SCOPED_TRACE(testing::Message() << "crash_at=" << crash_at << " seed=" << seed);
      ModelStorage disk;
      put(disk, "adapter_model.safetensors", foreign_file("mine"));
      save_model(disk, 1, first);
      disk.crash_at(disk.operation_count() + crash_at);
      const bool ended = try_model(disk, 2, second).has_value();
      done = ended && !disk.fault_fired();
      if (seed == 0) disk.outlive_crash();
      if (seed != 0) disk.lose_power(seed);
      for (const Prefers prefers : {Prefers::kTheIndex, Prefers::kSingleFile}) {
        const auto found = whole_model(disk, prefers);
        ASSERT_TRUE(found) << "no whole model";
        if (done) ASSERT_EQ(*found, 2u);
      }
      bool recognised = true;  // the next save recognises the leftovers: the power cut left each folder its lease
      for (const std::string& name : names_in(disk)) {
        if (!save_id_of_folder(name, SaveForm::kModel)) continue;
        recognised = recognised && disk.open(name + "/lease", false);
        if (recognised) leave_dead_lease(disk, name);
      }
      const auto names = save_model(disk, 3, second);
      std::vector<std::string> expected = names;
      expected.emplace_back("adapter_model.safetensors");
      if (second.kind == Kind::kIndexed) expected.emplace_back(kIndex);
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

}  // namespace
}  // namespace cairn::commit

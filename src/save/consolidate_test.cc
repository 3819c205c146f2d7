#include <cairn/cairn.h>
#include <cairn/save.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "save/testing/sample_model.h"
#include "storage/testing/scratch_directory.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;
using Stripes = SampleModel::Stripes;

constexpr const char* kIndexName = "model.safetensors.index.json";
const SafetensorsForm kShards{{}, true, false};

class ModelConsolidation : public testing::Test {
 protected:
  ModelConsolidation() {
    EXPECT_TRUE(save_model(shards_, 3, kShards));
    EXPECT_EQ(names_in(shards_).size(), static_cast<std::size_t>(SampleModel::kStripeCount));
  }

  static Names names_in(const fs::path& directory) {
    Names names;
    if (!fs::exists(directory)) return names;
    for (const auto& file : fs::directory_iterator(directory)) names.push_back(file.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }
  Result<SaveReport> run(const SafetensorsForm& form = {}) const {
    SaveOptions options;
    options.durability = Durability::kBuffered;
    options.safetensors = form;
    return consolidate(shards_, model_, options);
  }
  void expect_refused(const SafetensorsForm& form, ErrorCode code, const std::string& key) const {
    const Names before = names_in(model_);
    const auto consolidated = run(form);
    ASSERT_FALSE(consolidated);
    EXPECT_EQ(consolidated.error().code(), code) << consolidated.error().what();
    EXPECT_EQ(consolidated.error().key(), key);
    EXPECT_EQ(names_in(model_), before);
  }

  storage::ScratchDirectory scratch_;
  fs::path shards_ = scratch_.path() / "sharded";
  fs::path model_ = scratch_.path() / "model";
};

TEST_F(ModelConsolidation, MakesOneFileWithAnIndex) {
  const auto report = run();
  ASSERT_TRUE(report) << report.error().what();
  EXPECT_EQ(names_in(model_), (Names{"model-00001-of-00001.safetensors", kIndexName}));
  EXPECT_EQ(step_of_model(model_, Stripes::kRows), 3);
  const auto opened = open(model_);
  ASSERT_TRUE(opened);
  for (const CatalogTensor& tensor : opened->catalog().tensors) EXPECT_EQ(tensor.chunk_count(), 1u) << tensor.fqn;
}

TEST_F(ModelConsolidation, WritesNumberedFilesOverAModel) {
  ASSERT_TRUE(save_model(model_, 1));
  const SafetensorsForm form{{{"weight", 1}, {"striped", 2}, {"scalar", 2}, {"empty", 1}, {"mask", 2}}, false, false};
  const auto report = run(form);
  ASSERT_TRUE(report) << report.error().what();
  EXPECT_EQ(names_in(model_).size(), 3u);
  EXPECT_EQ(step_of_model(model_, Stripes::kRows), 3);
}

TEST_F(ModelConsolidation, RefusesAnUnfittingMapping) {
  expect_refused({{{"weight", 1}}, false, false}, ErrorCode::kInvalidArgument, "scalar");
  expect_refused({{{"other", 1}}, false, false}, ErrorCode::kMissingKey, "other");
}

TEST_F(ModelConsolidation, RefusesItsOwnInputAsTheOutput) {
  model_ = shards_;
  const Names before = names_in(shards_);
  const auto consolidated = run();
  ASSERT_FALSE(consolidated);
  EXPECT_EQ(consolidated.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(names_in(shards_), before);
}

TEST_F(ModelConsolidation, BadShardLeavesTheOlderModel) {
  ASSERT_TRUE(save_model(model_, 1));
  const Names before = names_in(model_);
  const fs::path shard = shards_ / "shard-00001-model-00001-of-00001.safetensors";
  {
    std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-5, std::ios::end);
    file.put('\x7f');
  }
  for (const bool is_missing : {false, true}) {
    if (is_missing) fs::remove(shard);
    const auto consolidated = run();
    ASSERT_FALSE(consolidated);
    EXPECT_EQ(consolidated.error().code(), ErrorCode::kCorrupt) << consolidated.error().what();
    EXPECT_EQ(names_in(model_), before);
    EXPECT_EQ(step_of_model(model_), 1);
  }
}

}  // namespace
}  // namespace cairn

// Saves of one file (ModelClaimOptions::file_name), and models beside DCP checkpoints, on a model disk.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "commit/testing/one_model.h"

namespace cairn::commit {
namespace {

ModelClaimOptions one_file(const std::string& name) {
  ModelClaimOptions options;
  options.kind = Kind::kAlone;
  options.file_name = name;
  return options;
}

Result<void> save(ModelStorage& disk, std::uint64_t number, const ModelClaimOptions& options) {
  CAIRN_TRY(try_model(disk, number, options));
  return {};
}

TEST(OneFileSave, TouchesNothingElseAsAModel) {
  ModelStorage disk;
  put(disk, "vae.safetensors", foreign_file("vae"));
  ModelClaimOptions careful = one_file("model.safetensors");
  careful.overwrite = false;
  ASSERT_TRUE(save(disk, 1, careful));
  EXPECT_EQ(names_in(disk), (std::vector<std::string>{"model.safetensors", "vae.safetensors"}));
  EXPECT_FALSE(save(disk, 2, careful));
  ASSERT_TRUE(save(disk, 3, one_file("model.safetensors")));
  EXPECT_EQ(names_in(disk), (std::vector<std::string>{"model.safetensors", "vae.safetensors"}));
}

// The leases of the killed save become those of an ended process.
void end_processes(ModelStorage& disk) {
  for (const std::string& name : names_in(disk)) {
    const auto files = disk.list(name);
    const auto is_lease = [](const storage::ListedFile& file) { return file.name == kLeaseName; };
    if (files && std::any_of(files->begin(), files->end(), is_lease)) leave_dead_lease(disk, name);
  }
}

TEST(OneFileSave, LeavesNoIndexWhenKilled) {
  ModelStorage disk;
  for (std::uint64_t crash_at = 0; crash_at < 30; ++crash_at) {
    SCOPED_TRACE(crash_at);
    disk.crash_at(disk.operation_count() + crash_at);
    (void)save(disk, 2 * crash_at + 1, one_file("model.safetensors"));
    disk.outlive_crash();
    end_processes(disk);
    ASSERT_TRUE(save(disk, 2 * crash_at + 2, one_file("part.safetensors")));
    const std::vector<std::string> names = names_in(disk);
    EXPECT_EQ(std::count(names.begin(), names.end(), kIndex), 0);
  }
  EXPECT_EQ(names_in(disk), (std::vector<std::string>{"model.safetensors", "part.safetensors"}));
}

TEST(OneFileSave, NeverStandsBesideAnIndexedSet) {
  ModelStorage disk;
  put(disk, "model-00001-of-00001.safetensors", file_of(model_save(9), {Kind::kIndexed, 1}, "key"));
  put(disk, std::string(kIndex), R"({"weight_map": {"key": "model-00001-of-00001.safetensors"}})");
  const Result<void> saved = save(disk, 1, one_file("model.safetensors"));
  ASSERT_FALSE(saved);
  EXPECT_EQ(saved.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(saved.error().actual().value_or("").find("model-00001-of-00001.safetensors"), std::string::npos);
  EXPECT_EQ(names_in(disk), (std::vector<std::string>{"model-00001-of-00001.safetensors", std::string(kIndex)}));
}

TEST(OneFileSave, TakesNoNameOfACheckpoint) {
  ModelStorage disk;
  for (const char* name :
       {".metadata", "__0.metadata", "__0_0.distcp", "model.safetensors.index.json", ".cairn-lock"}) {
    EXPECT_FALSE(save(disk, 1, one_file(name))) << name;
  }
}

TEST(ModelClaim, NeverStandsBesideACheckpoint) {
  for (const char* name : {".metadata", "__0_0.distcp"}) {
    ModelStorage disk;
    put(disk, name, "bytes");
    for (const Kind kind : {Kind::kIndexed, Kind::kAlone, Kind::kShards}) {
      ModelClaimOptions options;
      options.kind = kind;
      const auto claimed = claim_model(disk, model_save(1), options);
      ASSERT_FALSE(claimed);
      EXPECT_NE(std::string(claimed.error().what()).find("new directory"), std::string::npos);
    }
    EXPECT_EQ(names_in(disk), std::vector<std::string>{name});
    EXPECT_TRUE(save(disk, 2, one_file("model.safetensors")));
  }
}

}  // namespace
}  // namespace cairn::commit

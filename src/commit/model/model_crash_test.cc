// Kills and power cuts at every operation of the commit of a safetensors model, on a model disk.
#include <gtest/gtest.h>
#include <sanitizers.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "commit/model/model_commit.h"
#include "commit/testing/one_model.h"

namespace cairn::commit {
namespace {

constexpr std::uint64_t kSeeds = 24;  // 0: without a power cut
constexpr std::uint64_t kSeedStep = kSanitized ? 6 : 1;

// Overwrites a model of save 1 by save 2 with a crash at each operation, with and without a power cut. Every reader
// then finds a whole model, which is that of save 2 if the save was reported as successful. A claim makes all readers
// agree, and the next save removes all leftovers.
void crash_everywhere(const ModelClaimOptions& first, const ModelClaimOptions& second) {
  const bool has_shards = first.kind == Kind::kShards || second.kind == Kind::kShards;
  bool done = false;
  for (std::uint64_t crash_at = 0; !done; ++crash_at) {
    for (std::uint64_t seed = 0; seed < kSeeds; seed += kSeedStep) {
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
      ASSERT_TRUE(claim_model(disk, model_save(4), any));
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

TEST(ModelCrash, LeavesAWholeModelAnywhere) {
  ModelClaimOptions set, alone;
  alone.kind = Kind::kAlone;
  crash_everywhere(set, set);
  crash_everywhere(alone, set);
  crash_everywhere(set, alone);
  crash_everywhere(alone, alone);
}

TEST(ModelCrash, LosesNoModelToShards) {
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

// Save 3 has claimed the directory before save 2 of its job commits. One of both saves is killed at each operation of
// its publication and commit. Every reader then finds a whole model, and the next save removes all leftovers.
void crash_while_saves_overlap(const ModelClaimOptions& options, bool kill_the_earlier) {
  const bool is_single_file = options.kind == Kind::kAlone;
  bool done = false;
  for (std::uint64_t crash_at = 0; !done; ++crash_at) {
    for (std::uint64_t seed = 0; seed < (kill_the_earlier ? 1 : kSeeds); seed += kSeedStep) {
      SCOPED_TRACE(testing::Message() << "crash_at=" << crash_at << " seed=" << seed);
      ModelStorage disk;
      if (is_single_file) put(disk, "adapter_model.safetensors", foreign_file("mine"));
      save_model(disk, 1, options);
      bool ended = false;
      const auto publish_and_commit = [](OneModel& save) { return save.publish() && save.commit(); };
      {
        std::optional<OneModel> earlier = OneModel::make(disk, model_save(2), options).value();
        std::optional<OneModel> later = OneModel::make(disk, model_save(3), options).value();
        if (!kill_the_earlier) ASSERT_TRUE(publish_and_commit(*earlier));
        disk.crash_at(disk.operation_count() + crash_at);
        std::optional<OneModel>& killed = kill_the_earlier ? earlier : later;
        ended = publish_and_commit(*killed);
        killed.reset();
        done = ended && !disk.fault_fired();
        if (seed == 0) disk.outlive_crash();
        if (seed != 0) disk.lose_power(seed);
        if (kill_the_earlier) ASSERT_TRUE(publish_and_commit(*later));
      }
      if (options.kind != Kind::kShards) ASSERT_TRUE(model_of_cairn(disk));
      const bool has_committed = ended || kill_the_earlier;  // save 3
      if (has_committed && options.kind != Kind::kShards) ASSERT_EQ(model_of_cairn(disk), 3u);
      if (ended && options.kind != Kind::kShards) ASSERT_EQ(model_of_transformers(disk), 3u);
      const bool recognised = kill_saves(disk);
      { ASSERT_TRUE(claim_model(disk, model_save(4), ModelClaimOptions())); }
      if (recognised) ASSERT_TRUE(model_of_cairn(disk));
      if (recognised && has_committed) ASSERT_EQ(model_of_cairn(disk), 3u);
      std::vector<std::string> expected = save_model(disk, 5, options);
      if (is_single_file) expected.emplace_back("adapter_model.safetensors");
      if (options.kind != Kind::kShards) expected.emplace_back(kIndex);
      const std::vector<std::string> left = names_in(disk);
      if (recognised) ASSERT_EQ(left, sorted(expected));
    }
  }
}

TEST(ModelCrash, OverlappingSavesKeepTheOrder) {
  for (const Kind kind : {Kind::kIndexed, Kind::kAlone, Kind::kShards}) {
    SCOPED_TRACE(static_cast<int>(kind));
    crash_while_saves_overlap(of_kind(kind), false);
    crash_while_saves_overlap(of_kind(kind), true);
  }
}

}  // namespace
}  // namespace cairn::commit

// Checkpoints in a bucket: found, opened, loaded and verified by URL, and the requests for each.
#include <cairn/cairn.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "coordination/testing/as_ranks.h"
#include "save/save_calls.h"
#include "storage/bucket/process_buckets.h"
#include "storage/testing/memory_object_store.h"
#include "storage/testing/model_storage.h"

namespace cairn {
namespace {

using storage::MemoryObjectStore;

constexpr std::size_t kSavingRanks = 4;
constexpr std::size_t kTensorsOfRank = 100;  // of each rank
constexpr std::int64_t kElementsOfTensor = 8 * 1024;

// The tensors of a rank, each with a value of its own.
struct RankState {
  explicit RankState(std::size_t rank, float step) {
    for (std::size_t i = 0; i < kTensorsOfRank; ++i) {
      memory.emplace_back(kElementsOfTensor, step + static_cast<float>(rank * kTensorsOfRank + i));
      EXPECT_TRUE(dict.add_tensor("rank" + std::to_string(rank) + ".layer" + std::to_string(i),
                                  TensorView::contiguous(memory.back().data(), DType::kFloat32, {kElementsOfTensor})));
    }
  }
  std::vector<std::vector<float>> memory;
  StateDict dict;
};

class BucketLoad : public testing::Test {
 protected:
  BucketLoad() { storage::use_store("s3://loads", store_); }
  ~BucketLoad() override { storage::use_store("s3://loads", nullptr); }
  BucketLoad(const BucketLoad&) = delete;
  BucketLoad& operator=(const BucketLoad&) = delete;

  // A checkpoint of all ranks, copied into the bucket.
  void put_checkpoint(const std::string& prefix, float step) {
    storage::ModelStorage disk;
    as_ranks(kSavingRanks, [&](std::size_t rank, Collectives& collectives) {
      const RankState state(rank, step);
      SaveOptions options;
      options.checkpoint_id = prefix;
      options.collectives = &collectives;
      const auto saved = checkpointer::save_into({prefix, storage::ModelStorage::opening(disk)}, state.dict, options);
      EXPECT_TRUE(saved) << saved.error().what();
    });
    for (const storage::ListedFile& file : disk.list("").value()) {
      if (file.is_regular) store_->put(prefix + "/" + file.name, storage::read_small(disk, file.name, 1 << 30).value());
    }
  }

  static void load(const std::string& url, std::size_t rank, float step) {
    RankState state(rank, -1);
    const Result<Checkpoint> checkpoint = open(url);
    ASSERT_TRUE(checkpoint) << checkpoint.error().what();
    const auto report = checkpoint->load(state.dict, {});
    ASSERT_TRUE(report) << report.error().what();
    for (std::size_t i = 0; i < kTensorsOfRank; ++i) {
      const float value = step + static_cast<float>(rank * kTensorsOfRank + i);
      EXPECT_EQ(state.memory[i], std::vector<float>(kElementsOfTensor, value)) << i;
    }
  }

  std::shared_ptr<MemoryObjectStore> store_ = std::make_shared<MemoryObjectStore>();  // shared with the process
};

TEST_F(BucketLoad, ARankNeedsAFewRequests) {
  put_checkpoint("run/step-1", 1);
  const std::uint64_t before = store_->call_count();
  load("s3://loads/run/step-1", 2, 1);
  // The metadata; the description and the trailer of a file; and its 3.2 MB in requests of at most 2.25 MiB.
  EXPECT_LE(store_->call_count() - before, 6u);
}

TEST_F(BucketLoad, RanksTogetherNeedNoMore) {
  put_checkpoint("run/step-1", 1);
  const std::uint64_t before = store_->call_count();
  as_ranks(kSavingRanks, [&](std::size_t rank, Collectives& collectives) {
    RankState state(rank, -1);
    const Result<Checkpoint> checkpoint = open("s3://loads/run/step-1/");
    ASSERT_TRUE(checkpoint) << checkpoint.error().what();
    LoadOptions options;
    options.collectives = &collectives;
    const auto report = checkpoint->load(state.dict, options);
    ASSERT_TRUE(report) << report.error().what();
    EXPECT_EQ(state.memory[5],
              std::vector<float>(kElementsOfTensor, static_cast<float>(1 + rank * kTensorsOfRank + 5)));
  });
  const std::uint64_t calls = store_->call_count() - before;
  RecordProperty("calls", static_cast<int>(calls));
  EXPECT_LE(calls, 6 * kSavingRanks);
}

TEST_F(BucketLoad, FindsTheNewestOfARun) {
  put_checkpoint("run/step-1", 1);
  put_checkpoint("run/step-2", 2);
  EXPECT_EQ(latest("s3://loads/run").value(), "s3://loads/run/step-2");
  const auto listed = checkpoints("s3://loads/run").value();
  ASSERT_EQ(listed.size(), 2u);
  EXPECT_EQ(listed[0].directory, "s3://loads/run/step-2");
  EXPECT_TRUE(listed[0].is_newest);
  EXPECT_EQ(listed[1].state, ListedCheckpoint::State::kComplete);
  EXPECT_TRUE(saves_in_flight("s3://loads/run").value().empty());
  load("s3://loads/run/step-2", 0, 2);
}

TEST_F(BucketLoad, AMissingRunHasNoNewest) {
  EXPECT_EQ(latest("s3://loads/run").value(), std::nullopt);
  EXPECT_EQ(checkpoints("s3://loads/run").error().code(), ErrorCode::kNotFound);
}

TEST_F(BucketLoad, ADataFileThatIsGoneIsFound) {
  put_checkpoint("run/step-1", 1);
  put_checkpoint("run/step-2", 2);
  for (const auto& [key, bytes] : store_->contents()) {
    if (key.starts_with("run/step-2/__3")) store_->drop(key);
  }
  EXPECT_EQ(latest("s3://loads/run").value(), "s3://loads/run/step-1");
  EXPECT_EQ(checkpoints("s3://loads/run").value()[0].state, ListedCheckpoint::State::kIncomplete);
}

TEST_F(BucketLoad, VerifyFindsAFlippedBit) {
  put_checkpoint("run/step-1", 1);
  EXPECT_TRUE(verify("s3://loads/run/step-1").value().problems.empty());
  for (auto [key, bytes] : store_->contents()) {
    if (!key.starts_with("run/step-1/__1")) continue;
    bytes[bytes.size() / 2] ^= 1;
    store_->put(key, bytes);
  }
  const auto report = verify("s3://loads/run/step-1").value();
  ASSERT_EQ(report.problems.size(), 1u);
  EXPECT_EQ(report.problems[0].code(), ErrorCode::kCorrupt);
}

TEST_F(BucketLoad, NamesTheCheckpointsBeside) {
  put_checkpoint("run/step-1", 1);
  const Result<Checkpoint> missing = open("s3://loads/run/step-7");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), ErrorCode::kNotFound);
  EXPECT_NE(missing.error().message().find("'s3://loads/run' holds step-1"), std::string::npos)
      << missing.error().what();
  const Result<Checkpoint> above = open("s3://loads/run");
  ASSERT_FALSE(above);
  EXPECT_EQ(above.error().actual(), "step-1");
}

TEST_F(BucketLoad, AReplacedFileIsNeverMixedIn) {
  put_checkpoint("run/step-1", 1);
  Checkpoint checkpoint = open("s3://loads/run/step-1").value();
  put_checkpoint("other", 2);
  for (const auto& [key, bytes] : store_->contents()) {
    if (key.starts_with("other/")) store_->put("run/step-1/" + key.substr(6), bytes);
  }
  RankState state(0, -1);
  const auto report = checkpoint.load(state.dict, {});
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), ErrorCode::kReplaced) << report.error().what();
}

}  // namespace
}  // namespace cairn

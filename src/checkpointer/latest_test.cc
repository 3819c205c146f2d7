#include <cairn/cairn.h>
#include <cairn/convert.h>
#include <cairn/latest.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "checkpointer/testing/sample_model.h"
#include "checkpointer/testing/sample_state.h"
#include "commit/lease.h"
#include "commit/testing/dead_lease.h"
#include "format/manifest/commit_record.h"
#include "format/safetensors/header.h"
#include "storage/open_directory.h"
#include "storage/testing/scratch_directory.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

class Latest : public testing::Test {
 protected:
  void save_as(const std::string& name) const {
    SaveOptions options;
    options.durability = Durability::kBuffered;
    const SampleState state(1);
    ASSERT_TRUE(save(root_ / name, state.dict(), options));
  }
  // A pickle without a commit record, as stock torch leaves one.
  void save_stock(const std::string& name, const std::string& pickle = "N.") const {
    fs::create_directories(root_ / name);
    std::ofstream(root_ / name / ".metadata") << pickle;
  }
  // A checkpoint of no bytes that names these files.
  void save_record(const std::string& name, std::vector<manifest::CommitRecord::File> files) const {
    manifest::CommitRecord record;
    record.job_start = 1;
    record.files = std::move(files);
    record.front_bytes = 0;
    save_stock(name, manifest::encode_commit_record(record));
  }
  void change(const std::string& name, std::chrono::seconds ago) const {
    fs::last_write_time(root_ / name, fs::file_time_type::clock::now() - ago);
  }

  // The name of the newest checkpoint; empty if there is none. `passed_over_` then has the errors.
  std::string newest(LatestOptions options = {}) {
    passed_over_.clear();
    options.passed_over = [this](const Error& error) { passed_over_.push_back(error); };
    const auto found = latest(root_, options);
    EXPECT_TRUE(found) << found.error().what();
    return found && *found ? (*found)->filename().string() : "";
  }

  storage::ScratchDirectory scratch_;
  fs::path root_ = scratch_.path() / "root";
  std::vector<Error> passed_over_;
};

TEST_F(Latest, IsTheLastSaveForAnyFileTimes) {
  save_as("step-2");
  save_as("step-1");
  change("step-1/.metadata", 3600s);
  EXPECT_EQ(newest(), "step-1");
  EXPECT_TRUE(passed_over_.empty());
}

TEST_F(Latest, SkipsACheckpointWithATruncatedDataFile) {
  save_as("old");
  save_as("new");
  const fs::path file = root_ / "new" / "__0_0.distcp";
  const auto size = fs::file_size(file);
  fs::resize_file(file, size - 1);
  EXPECT_EQ(newest(), "old");
  ASSERT_EQ(passed_over_.size(), 1u);
  EXPECT_EQ(passed_over_[0].code(), ErrorCode::kCorrupt);
  EXPECT_EQ(passed_over_[0].file(), "__0_0.distcp");
  EXPECT_EQ(passed_over_[0].expected(), std::to_string(size) + " bytes");
  EXPECT_EQ(passed_over_[0].actual(), std::to_string(size - 1) + " bytes");
  EXPECT_NE(std::string(passed_over_[0].what()).find((root_ / "new").string()), std::string::npos);

  fs::remove(file);
  EXPECT_EQ(newest(), "old");
  ASSERT_EQ(passed_over_.size(), 1u);
  EXPECT_EQ(passed_over_[0].code(), ErrorCode::kNotFound);
}

TEST_F(Latest, LooksAtNoFileOutsideTheCheckpoint) {
  std::ofstream(scratch_.path() / "outside") << "four";
  save_record("parent", {{"../../outside", 4, 0}});
  save_record("absolute", {{(scratch_.path() / "outside").string(), 4, 0}});
  EXPECT_EQ(newest(), "");
  ASSERT_EQ(passed_over_.size(), 2u);
  for (const Error& error : passed_over_) EXPECT_EQ(error.code(), ErrorCode::kUnsafe) << error.what();
}

TEST_F(Latest, WaitsOnNoPipe) {
  save_as("old");
  fs::create_directories(root_ / "piped");
  ASSERT_EQ(mkfifo((root_ / "piped" / ".metadata").c_str(), 0600), 0);
  save_record("data", {{"data", 4, 0}});
  ASSERT_EQ(mkfifo((root_ / "data" / "data").c_str(), 0600), 0);
  fs::create_directories(root_ / "folder" / ".metadata");
  EXPECT_EQ(newest(), "old");
  EXPECT_EQ(passed_over_.size(), 2u) << "the record of 'data' is older than the save, so its files do not matter";
}

TEST_F(Latest, OrdersStockCheckpointsByTheTimeOfTheirMetadata) {
  for (const std::string name : {"a", "b", "c"}) save_stock(name);
  change("a/.metadata", 20s);
  change("b/.metadata", 10s);
  change("c/.metadata", 30s);
  EXPECT_EQ(newest(), "b");
}

TEST_F(Latest, OrdersStockCheckpointsOfOneTimeByTheirNumbers) {
  const auto time = fs::file_time_type::clock::now() - 10s;
  for (const std::string name : {"step-9", "step-100", "step-20"}) {
    save_stock(name);
    fs::last_write_time(root_ / name / ".metadata", time);
  }
  EXPECT_EQ(newest(), "step-100");
}

TEST_F(Latest, ComparesTheBestOfBothKindsByTime) {
  save_as("ours");
  save_stock("stock");
  change("stock/.metadata", 60s);
  EXPECT_EQ(newest(), "ours");
  change("ours/.metadata", 120s);
  EXPECT_EQ(newest(), "stock");
}

TEST_F(Latest, RanksAnExactCopyRightAfterItsOriginal) {
  save_as("step-1");
  save_as("step-2");
  ASSERT_TRUE(convert(root_ / "step-1", root_ / "step-1-copy-9"));
  ASSERT_TRUE(convert(root_ / "step-2", root_ / "step-2-copy-9"));
  EXPECT_EQ(newest(), "step-2");
  fs::remove_all(root_ / "step-2");
  EXPECT_EQ(newest(), "step-2-copy-9");
  fs::remove_all(root_ / "step-2-copy-9");
  EXPECT_EQ(newest(), "step-1");
  save_as("step-3");
  EXPECT_EQ(newest(), "step-3");
}

TEST_F(Latest, RanksAChangedCopyAfterAllOtherCheckpoints) {
  save_as("step-1");
  save_as("step-2");
  ConvertOptions options;
  options.dtype = DType::kBFloat16;
  ASSERT_TRUE(convert(root_ / "step-2", root_ / "step-2-bf16", options));
  fs::remove_all(root_ / "step-2");
  EXPECT_EQ(newest(), "step-1");
  fs::remove_all(root_ / "step-1");
  EXPECT_EQ(newest(), "step-2-bf16");
  save_stock("stock");
  change("stock/.metadata", 3600s);
  EXPECT_EQ(newest(), "stock");
}

TEST_F(Latest, PassesOverAStockCheckpointThatIsCutShort) {
  save_stock("old");
  change("old/.metadata", 60s);
  save_stock("cut", "N");
  save_stock("empty", "");
  EXPECT_EQ(newest(), "old");
  ASSERT_EQ(passed_over_.size(), 2u);
  for (const Error& error : passed_over_) EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
}

TEST_F(Latest, IsNoneWithoutARoot) {
  EXPECT_EQ(newest(), "");
  ASSERT_EQ(passed_over_.size(), 1u);
  EXPECT_EQ(passed_over_[0].code(), ErrorCode::kNotFound);
  EXPECT_EQ(passed_over_[0].file(), root_.string());
}

TEST_F(Latest, LooksIntoNoPrivateFolder) {
  save_as("old");
  fs::copy(root_ / "old", root_ / ".cairn-00000000000000000000000000000001", fs::copy_options::recursive);
  EXPECT_EQ(newest(), "old");
}

TEST_F(Latest, WaitsForALivingWriterUntilTheCallerInterrupts) {
  save_as("old");
  const auto storage = storage::open_directory(root_ / "old").value();
  const auto lease = commit::Lease::take_with_folder(*storage, {{1, 2}, {3, 4}, 1});
  ASSERT_TRUE(lease);
  int asked = 0;
  const auto found = latest(root_, {.wait = 1h, .interrupted = [&] { return ++asked == 3; }});
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code(), ErrorCode::kCancelled);
  EXPECT_EQ(asked, 3);
}

TEST_F(Latest, IsTheLastModelIfThereIsNoCheckpoint) {
  ASSERT_TRUE(save_model(root_ / "b", 1));
  ASSERT_TRUE(save_model(root_ / "a", 2));
  fs::create_directories(root_ / "pretrained");
  safetensors::Header header;
  header.tensors.push_back({"w", DType::kFloat32, Extents{0}, 0, 0});
  std::ofstream(root_ / "pretrained" / "model.safetensors") << safetensors::render_header(header).value();
  EXPECT_EQ(newest(), "a");
  EXPECT_TRUE(passed_over_.empty());
  ASSERT_TRUE(save_model(root_ / "b", 3, {{}, true, true}));  // shards, without an index
  EXPECT_EQ(newest(), "b");
  const fs::path shard = root_ / "b" / fs::directory_iterator(root_ / "b")->path().filename();
  fs::remove(shard);
  EXPECT_EQ(newest(), "a");
  ASSERT_EQ(passed_over_.size(), 1u);
  EXPECT_EQ(passed_over_[0].code(), ErrorCode::kCorrupt);
  save_as("checkpoint");
  ASSERT_TRUE(save_model(root_ / "export", 4));
  EXPECT_EQ(newest(), "checkpoint");
  fs::resize_file(root_ / "checkpoint" / "__0_0.distcp", 1);
  EXPECT_EQ(newest(), "") << "a model does not stand in for a damaged checkpoint";
}

TEST_F(Latest, WaitsForNoWriterThatIsDead) {
  save_as("old");
  const auto storage = storage::open_directory(root_ / "old").value();
  const std::string folder = commit::folder_of({1, 2});
  ASSERT_TRUE(storage->make_folder(folder));
  commit::leave_dead_lease(*storage, folder);
  LatestOptions options;
  options.wait = 1h;
  EXPECT_EQ(newest(options), "old");
}

}  // namespace
}  // namespace cairn

#include <cairn/cairn.h>
#include <cairn/convert.h>
#include <cairn/latest.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "commit/lease.h"
#include "commit/testing/dead_lease.h"
#include "format/dcp/metadata_template.h"
#include "format/manifest/commit_record.h"
#include "format/safetensors/header.h"
#include "save/testing/named_calls.h"
#include "save/testing/sample_model.h"
#include "save/testing/sample_state.h"
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
  void save_stock(const std::string& name, const std::string& pickle = pickle_of({})) const {
    fs::create_directories(root_ / name);
    std::ofstream(root_ / name / ".metadata", std::ios::binary) << pickle;
  }
  // Of a checkpoint with a value of 8 bytes at offset 4 of each of these files.
  static std::string pickle_of(const std::vector<std::string>& files) {
    Catalog catalog;
    for (std::uint32_t i = 0; i < files.size(); ++i) {
      catalog.values.push_back({"value" + std::to_string(i), {i, 4, 8}});
      catalog.keys.push_back({false, i});
    }
    catalog.files = files;
    return dcp::MetadataTemplate::make(catalog).value().render("", "", files);
  }
  // Changes a bit of the byte at `offset`.
  void damage(const std::string& file, std::uint64_t offset) const {
    std::fstream stream(root_ / file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(offset));
    const int byte = stream.get();
    stream.seekp(static_cast<std::streamoff>(offset));
    stream.put(static_cast<char>(byte ^ 0x10));
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

TEST_F(Latest, TakesTheLastSaveByItsRecord) {
  save_as("step-2");
  save_as("step-1");
  change("step-1/.metadata", 3600s);
  EXPECT_EQ(newest(), "step-1");
  EXPECT_TRUE(passed_over_.empty());
}

TEST_F(Latest, SkipsATruncatedDataFile) {
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

// In the form of torch_checkpointing: without Cairn's record nothing says which is the newest.
TEST_F(Latest, TakesADirectoryWithARecord) {
  save_as("dcp");
  for (const char* name : {"files", "stock"}) {
    fs::create_directories(root_ / name);
    std::ofstream(root_ / name / "model_0.pt") << "four";
  }
  manifest::CommitRecord record;
  record.job_start = manifest::kJobStartMax;
  record.save_number = 1;
  record.files = {{"model_0.pt", 4, 0}};
  std::ofstream(root_ / "files" / ".cairn-record", std::ios::binary) << manifest::encode_commit_record(record);
  EXPECT_EQ(newest(), "files");
  const auto listed = checkpoints(root_).value();
  ASSERT_EQ(listed.size(), 2u);
  EXPECT_EQ(listed[0].format, CheckpointFormat::kTorchCheckpointing);
  EXPECT_TRUE(listed[0].is_newest);

  fs::resize_file(root_ / "files" / "model_0.pt", 3);
  EXPECT_EQ(newest(), "dcp");
  EXPECT_EQ(passed_over_.size(), 1u);
}

TEST_F(Latest, LooksAtNoFileOutside) {
  std::ofstream(scratch_.path() / "outside") << "four";
  save_record("parent", {{"../../outside", 4, 0}});
  save_record("absolute", {{(scratch_.path() / "outside").string(), 4, 0}});
  EXPECT_EQ(newest(), "");
  ASSERT_EQ(passed_over_.size(), 2u);
  for (const Error& error : passed_over_) EXPECT_EQ(error.code(), ErrorCode::kUnsafe) << error.what();
}

TEST_F(Latest, DoesNotWaitOnAPipe) {
  save_as("old");
  fs::create_directories(root_ / "piped");
  ASSERT_EQ(mkfifo((root_ / "piped" / ".metadata").c_str(), 0600), 0);
  save_record("data", {{"data", 4, 0}});
  ASSERT_EQ(mkfifo((root_ / "data" / "data").c_str(), 0600), 0);
  fs::create_directories(root_ / "folder" / ".metadata");
  EXPECT_EQ(newest(), "old");
  EXPECT_EQ(passed_over_.size(), 2u) << "the record of 'data' is older than the save, so its files do not matter";
}

TEST_F(Latest, OrdersStockCheckpointsByTime) {
  for (const std::string name : {"a", "b", "c"}) save_stock(name);
  change("a/.metadata", 20s);
  change("b/.metadata", 10s);
  change("c/.metadata", 30s);
  EXPECT_EQ(newest(), "b");
}

TEST_F(Latest, OrdersEqualTimesByNumber) {
  const auto time = fs::file_time_type::clock::now() - 10s;
  for (const std::string name : {"step-9", "step-100", "step-20"}) {
    save_stock(name);
    fs::last_write_time(root_ / name / ".metadata", time);
  }
  EXPECT_EQ(newest(), "step-100");
}

TEST_F(Latest, ComparesBothKindsByTime) {
  save_as("ours");
  save_stock("stock");
  change("stock/.metadata", 60s);
  EXPECT_EQ(newest(), "ours");
  change("ours/.metadata", 120s);
  EXPECT_EQ(newest(), "stock");
}

TEST_F(Latest, RanksACopyAfterItsOriginal) {
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

TEST_F(Latest, RanksAChangedCopyLast) {
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

TEST_F(Latest, SkipsMetadataWithAFlippedBit) {
  save_as("old");
  save_as("new");
  const fs::path metadata = root_ / "new" / ".metadata";
  const auto size = fs::file_size(metadata);
  fs::copy(metadata, root_ / "intact");
  std::uint64_t damaged = 0;
  for (std::uint64_t offset = 0; offset < size; offset += 7) {
    damage("new/.metadata", offset);
    EXPECT_EQ(newest(), "old") << "offset " << offset;
    EXPECT_EQ(passed_over_.size(), 1u);
    fs::copy(root_ / "intact", metadata, fs::copy_options::overwrite_existing);
    ++damaged;
  }
  EXPECT_GT(damaged, 50u);
  EXPECT_EQ(newest(), "new");
}

TEST_F(Latest, ReadsNothingOlderThanItsResult) {
  save_as("old");
  save_as("new");
  damage("old/.metadata", 3);  // in the pickle: the commit record is intact
  EXPECT_EQ(newest(), "new");
  EXPECT_TRUE(passed_over_.empty());
}

TEST_F(Latest, ChecksFilesOfAStockCheckpoint) {
  save_stock("old");
  change("old/.metadata", 60s);
  save_stock("new", pickle_of({"a.distcp", "b.distcp"}));
  EXPECT_EQ(newest(), "old") << "no file";
  std::ofstream(root_ / "new" / "a.distcp") << "twelve bytes";
  std::ofstream(root_ / "new" / "b.distcp") << "too short";
  EXPECT_EQ(newest(), "old");
  ASSERT_EQ(passed_over_.size(), 1u);
  EXPECT_EQ(passed_over_[0].file(), "b.distcp");
  EXPECT_EQ(passed_over_[0].expected(), "at least 12 bytes");
  std::ofstream(root_ / "new" / "b.distcp") << "long enough, and more";
  EXPECT_EQ(newest(), "new");
  save_stock("new", "N.");
  EXPECT_EQ(newest(), "old") << "a pickle that is no metadata";
}

TEST_F(Latest, SkipsADanglingMetadataLink) {
  save_as("old");
  fs::create_directories(root_ / "new");
  fs::create_symlink("nowhere", root_ / "new" / ".metadata");
  EXPECT_EQ(newest(), "old");
  ASSERT_EQ(passed_over_.size(), 1u);
  EXPECT_EQ(passed_over_[0].code(), ErrorCode::kNotFound);
}

TEST_F(Latest, NamesADanglingNewerDirectory) {
  save_as("step-5");
  fs::create_directory_symlink(scratch_.path() / "removed", root_ / "step-9");
  EXPECT_EQ(newest(), "step-5");
  ASSERT_EQ(passed_over_.size(), 1u);
  EXPECT_EQ(passed_over_[0].code(), ErrorCode::kNotFound);
  EXPECT_NE(std::string(passed_over_[0].what()).find((root_ / "step-9").string()), std::string::npos);
  const auto listed = checkpoints(root_);
  ASSERT_TRUE(listed && listed->size() == 2);
  EXPECT_TRUE((*listed)[0].state == ListedCheckpoint::State::kUnreadable && (*listed)[1].is_newest);
  fs::remove(root_ / "step-9");
  fs::create_directory_symlink(scratch_.path() / "removed", root_ / "step-4");
  change("step-5/.metadata", -3600s);
  EXPECT_EQ(newest(), "step-5");
  EXPECT_TRUE(passed_over_.empty()) << "an earlier link with a smaller number";
}

TEST_F(Latest, TakesAModelBesideADanglingLink) {
  ASSERT_TRUE(save_model(root_ / "model", 1));
  fs::create_directory_symlink("removed", root_ / "best");
  EXPECT_EQ(newest(), "model");
  EXPECT_EQ(passed_over_.size(), 1u);
  EXPECT_TRUE(checkpoints(root_)->back().is_newest);
}

TEST_F(Latest, ListsAllCheckpointsInItsOrder) {
  for (const std::string name : {"step-1", "step-2", "step-3", "step-4"}) save_as(name);
  fs::resize_file(root_ / "step-3" / "__0_0.distcp", 1);
  damage("step-4/.metadata", 3);
  save_stock("stock");
  change("stock/.metadata", 3600s);
  ASSERT_TRUE(save_model(root_ / "model-7", 1));
  const auto listed = checkpoints(root_);
  ASSERT_TRUE(listed) << listed.error().what();
  std::vector<std::string> names;
  std::vector<ListedCheckpoint::State> states;
  for (const ListedCheckpoint& entry : *listed) {
    names.push_back(entry.directory.filename().string());
    states.push_back(entry.state);
    EXPECT_EQ(entry.is_newest, names.back() == "step-2");
    EXPECT_EQ(entry.reason.has_value(), entry.state != ListedCheckpoint::State::kComplete);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"step-4", "step-3", "step-2", "step-1", "stock", "model-7"}));
  constexpr auto kComplete = ListedCheckpoint::State::kComplete;
  EXPECT_EQ(states, (std::vector{ListedCheckpoint::State::kUnreadable, ListedCheckpoint::State::kIncomplete, kComplete,
                                 kComplete, kComplete, kComplete}));
  EXPECT_EQ((*listed)[0].step, 4u);
  EXPECT_EQ((*listed)[4].step, std::nullopt);
  EXPECT_EQ((*listed)[5].format, CheckpointFormat::kSafetensors);
  EXPECT_EQ(newest(), "step-2");
  EXPECT_EQ(checkpoints(root_ / "missing").error().code(), ErrorCode::kNotFound);
}

TEST_F(Latest, AllRanksGetTheFirstRanksAnswer) {
  save_as("step-1");
  as_three_ranks([&](std::size_t rank, Collectives& collectives) {
    const fs::path root = rank == 0 ? root_ : root_ / "none";
    int passed_over = 0;
    LatestOptions options;
    options.collectives = &collectives;
    options.passed_over = [&](const Error&) { ++passed_over; };
    const auto found = latest(root, options);
    ASSERT_TRUE(found) << found.error().what();
    EXPECT_EQ(*found, root_ / "step-1");
    EXPECT_EQ(passed_over, 0);
    const auto failed = latest(rank == 0 ? root_ / "step-1" / ".metadata" : root_, options);
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code(), ErrorCode::kInvalidArgument);
  });
}

TEST_F(Latest, SkipsACutOffStockCheckpoint) {
  save_stock("old");
  change("old/.metadata", 60s);
  save_stock("cut", "N");
  save_stock("empty", "");
  EXPECT_EQ(newest(), "old");
  ASSERT_EQ(passed_over_.size(), 2u);
  for (const Error& error : passed_over_) EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
}

TEST_F(Latest, FindsNoneWithoutARoot) {
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

TEST_F(Latest, WaitsForAWriterUntilInterrupt) {
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

TEST_F(Latest, TakesTheLastModelWithoutOthers) {
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

// Opening a safetensors model while saves are in flight, commit or leave files behind.
#include "checkpoint/safetensors_model.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "commit/model/model_files.h"
#include "format/safetensors/header.h"
#include "format/safetensors/index.h"
#include "save/testing/sample_model.h"
#include "storage/open_directory.h"
#include "storage/testing/scratch_directory.h"
#include "storage/testing/view_storage.h"

namespace cairn::checkpointer {
namespace {

namespace fs = std::filesystem;
using Stripes = SampleModel::Stripes;

// A directory in which something happens right before a data file of the model is opened.
class BusyStorage final : public storage::ViewStorage {
 public:
  BusyStorage(storage::Storage& storage, std::function<void()> before_open, int times)
      : ViewStorage(storage), before_open_(std::move(before_open)), times_left_(times) {}
  Result<std::unique_ptr<storage::ReadableFile>> open(std::string_view name, bool follow_links) const override {
    if (name.ends_with(commit::kModelSuffix) && times_left_ > 0) {
      --times_left_;
      before_open_();
    }
    return ViewStorage::open(name, follow_links);
  }

 private:
  std::function<void()> before_open_;
  mutable int times_left_;
};

class SafetensorsModel : public testing::Test {
 protected:
  void save(int step, const SafetensorsForm& form = {}) const {
    const auto saved = save_model(directory_, step, form);
    ASSERT_TRUE(saved) << saved.error().what();
  }
  std::unique_ptr<storage::Storage> storage() const { return storage::open_directory(directory_).value(); }
  Result<Checkpoint> open() const { return open_safetensors(storage(), {}); }
  // Opens the model; `before_open` runs before the first `times` opens of a data file.
  Result<Checkpoint> open_while(std::function<void()> before_open, int times) {
    opened_ = storage();
    return open_safetensors(std::make_unique<BusyStorage>(*opened_, std::move(before_open), times), {});
  }
  static int step_of(Checkpoint& checkpoint) {
    SampleModel target(0);
    return checkpoint.load(target.dict()) ? target.step() : -1;
  }
  void write(const std::string& name, const std::string& text) const { std::ofstream(directory_ / name) << text; }
  // Writes a file as another program.
  void write_foreign(const std::string& name, const std::string& key) const {
    safetensors::Header header;
    header.tensors.push_back({key, DType::kFloat32, Extents{0}, 0, 0});
    fs::create_directories((directory_ / name).parent_path());
    write(name, safetensors::render_header(header).value());
  }
  void write_index(const std::string& key, const std::string& file) const {
    write(std::string(safetensors::kIndexName), R"({"weight_map": {")" + key + R"(": ")" + file + R"("}})");
  }
  ErrorCode refusal() const {
    const auto opened = open();
    EXPECT_FALSE(opened);
    return opened ? ErrorCode::kInternal : opened.error().code();
  }

  storage::ScratchDirectory scratch_;
  fs::path directory_ = scratch_.path() / "model";
  std::unique_ptr<storage::Storage> opened_;
};

const std::string kRestOfASave = "model-00001-of-00002-" + std::string(39, '1') + ".safetensors";

TEST_F(SafetensorsModel, ASaveCommitsDuringTheOpening) {
  save(1);
  auto opened = open_while([this] { save(2); }, 1);
  ASSERT_TRUE(opened) << opened.error().what();
  EXPECT_EQ(step_of(*opened), 2);
}

TEST_F(SafetensorsModel, GivesUpAfterFiveMissingFiles) {
  save(1);
  fs::remove(directory_ / "model-00001-of-00001.safetensors");
  int tries = 0;
  const auto opened = open_while([&] { ++tries; }, 100);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(opened.error().file(), "model-00001-of-00001.safetensors");
  EXPECT_EQ(tries, 5);
}

TEST_F(SafetensorsModel, NoIndexBesideTheRestOfASave) {
  fs::create_directories(directory_);
  write_foreign("model.safetensors", "w");
  write(kRestOfASave, "");
  const auto opened = open();
  ASSERT_TRUE(opened) << opened.error().what();
  EXPECT_EQ(opened->catalog().files, std::vector<std::string>{"model.safetensors"});
  EXPECT_FALSE(order_of_model(*storage()).value());
}

TEST_F(SafetensorsModel, NoIndexBesideAnotherModel) {
  for (const char* other : {"shard-00001-model-00001-of-00001.safetensors", "model-00001-of-00002.safetensors"}) {
    fs::remove_all(directory_);
    fs::create_directories(directory_);
    write_foreign("model.safetensors", "w");
    write_foreign(other, "v");
    const auto opened = open();
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code(), ErrorCode::kCorrupt);
    EXPECT_EQ(opened.error().file(), other);
  }
}

TEST_F(SafetensorsModel, NoIndexAndAnUnreadableFile) {
  fs::create_directories(directory_);
  write(kRestOfASave, "");
  const auto rest = open();
  ASSERT_FALSE(rest);
  EXPECT_EQ(rest.error().file(), kRestOfASave);
  fs::remove(directory_ / kRestOfASave);
  write("model.safetensors", "");
  EXPECT_EQ(refusal(), ErrorCode::kCorrupt);
}

TEST_F(SafetensorsModel, NamesAnUnreadableShard) {
  const SafetensorsForm shards{{}, true, true};
  save(1, shards);
  save(2, shards);  // the names have the id of the save
  EXPECT_EQ(step_of_model(directory_, Stripes::kRows), 2);
  const fs::path shard = fs::directory_iterator(directory_)->path();
  fs::resize_file(shard, 100);
  const auto opened = open();
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(opened.error().file(), shard.filename().string());
}

TEST_F(SafetensorsModel, StaysWithinItsDirectory) {
  write_foreign("part/w.safetensors", "w");
  write_index("w", "part/w.safetensors");
  const auto opened = open();
  ASSERT_TRUE(opened) << opened.error().what();
  EXPECT_EQ(opened->catalog().files, std::vector<std::string>{"part/w.safetensors"});
  for (const char* path : {"../w.safetensors", "/w.safetensors", "part/../../w.safetensors"}) {
    write_index("w", path);
    EXPECT_EQ(refusal(), ErrorCode::kUnsafe) << path;
  }
  for (const char* path : {"./part/w.safetensors", "part//w.safetensors", "./part/./w.safetensors"}) {
    write_index("w", path);
    EXPECT_TRUE(open()) << path;
  }
  for (const char* path : {"part/", ".", ""}) {
    write_index("w", path);
    EXPECT_FALSE(open()) << path;
  }
  fs::rename(directory_ / "part", scratch_.path() / "outside");
  fs::create_directory_symlink(scratch_.path() / "outside", directory_ / "part");
  write_index("w", "part/w.safetensors");
  EXPECT_EQ(refusal(), ErrorCode::kUnsafe);
  fs::remove(directory_ / "part");
  fs::create_directory(directory_ / "part");
  fs::create_symlink(scratch_.path() / "outside" / "w.safetensors", directory_ / "part" / "w.safetensors");
  EXPECT_EQ(refusal(), ErrorCode::kUnsafe);
}

TEST_F(SafetensorsModel, OrdersModelsByTheirSaves) {
  save(1);
  const auto first = order_of_model(*storage()).value();
  save(2);
  const auto second = order_of_model(*storage()).value();
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->job_id, second->job_id);
  EXPECT_EQ(first->job_start, second->job_start);
  EXPECT_LT(first->save_number, second->save_number);
}

}  // namespace
}  // namespace cairn::checkpointer

#include <cairn/cairn.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "save/testing/sample_state.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;

class SaveLoad : public testing::Test {
 protected:
  SaveLoad() {
    fs::create_directories("build");
    std::string pattern = (fs::current_path() / "build" / "save-load-XXXXXX").string();
    root_ = mkdtemp(pattern.data());
    directory_ = root_ / "step_1";
  }
  ~SaveLoad() override { fs::remove_all(root_); }

  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const auto& file : fs::directory_iterator(directory_)) result.push_back(file.path().filename().string());
    std::sort(result.begin(), result.end());
    return result;
  }

  fs::path root_;
  fs::path directory_;
};

TEST_F(SaveLoad, LoadsTheSavedState) {
  ASSERT_TRUE(save(directory_, SampleState(7).dict()));
  EXPECT_EQ(names(), (std::vector<std::string>{".metadata", "__0_0.distcp"}));
  SampleState target(0);
  const auto report = load(directory_, target.dict());
  ASSERT_TRUE(report) << report.error().what();
  EXPECT_EQ(target.step(), 7);
  EXPECT_TRUE(report->conversions.empty());
}

TEST_F(SaveLoad, OneFilePerItemIsTheSameState) {
  ASSERT_TRUE(save(directory_, SampleState(7).dict(), {.file_per_item = true}));
  EXPECT_EQ(names().size(), 1 + SampleState(7).dict().entries().size());
  SampleState target(0);
  ASSERT_TRUE(load(directory_, target.dict()));
  EXPECT_EQ(target.step(), 7);
}

TEST_F(SaveLoad, OverwriteKeepsForeignFiles) {
  ASSERT_TRUE(save(directory_, SampleState(1).dict()));
  std::ofstream(directory_ / "common.pt") << "not ours";
  ASSERT_TRUE(save(directory_, SampleState(2).dict()));
  const std::vector<std::string> now = names();
  ASSERT_EQ(now.size(), 3u);
  EXPECT_EQ(now[0], ".metadata");
  EXPECT_TRUE(now[1].starts_with("__0_") && now[1] != "__0_0.distcp") << now[1];
  EXPECT_EQ(now[2], "common.pt");
  SampleState target(0);
  ASSERT_TRUE(load(directory_, target.dict()));
  EXPECT_EQ(target.step(), 2);
}

TEST_F(SaveLoad, RefusesAForbiddenOverwrite) {
  ASSERT_TRUE(save(directory_, SampleState(1).dict()));
  const auto again = save(directory_, SampleState(2).dict(), {.overwrite = false});
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(names().size(), 2u);
}

TEST_F(SaveLoad, AnInterruptedSaveLeavesNoTrace) {
  ASSERT_TRUE(save(directory_, SampleState(1).dict()));
  const auto before = names();
  std::vector<float> large(8 << 20);
  StateDict state;
  ASSERT_TRUE(state.add_tensor("large", TensorView::contiguous(large.data(), DType::kFloat32, {8 << 20})));
  SaveOptions options;
  options.interrupted = [] { return true; };
  const auto interrupted = save(directory_, state, options);
  if (!interrupted) {
    EXPECT_EQ(interrupted.error().code(), ErrorCode::kCancelled);
    EXPECT_EQ(names(), before);
  }
}

TEST_F(SaveLoad, FailureLeavesTheOldCheckpoint) {
  ASSERT_TRUE(save(directory_, SampleState(1).dict()));
  const auto before = names();
  SaveOptions options;
  options.before_commit = [&]() -> Result<void> {
    EXPECT_GT(names().size(), before.size()) << "the files are written by then";
    return Error(ErrorCode::kUnavailable, "not today");
  };
  const auto refused = save(directory_, SampleState(2).dict(), options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(names(), before);
  SampleState target(0);
  ASSERT_TRUE(load(directory_, target.dict()));
  EXPECT_EQ(target.step(), 1);
}

TEST_F(SaveLoad, ReadsABoxAcrossChunks) {
  std::vector<std::int32_t> values(24);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int32_t>(i);
  StateDict state;
  for (std::int64_t column = 0; column < 3; ++column) {  // a 4 x 6 tensor in three strided 4 x 2 chunks
    const TensorView chunk{values.data() + 2 * column, DType::kInt32, {4, 2}, {6, 1}};
    ASSERT_TRUE(state.add_chunk(Path{"w"}, chunk, {4, 6}, {0, 2 * column}));
  }
  ASSERT_TRUE(save(directory_, state));
  const auto checkpoint = open(directory_);
  ASSERT_TRUE(checkpoint);
  std::int32_t box[2][3];
  const auto target = TensorView::contiguous(static_cast<void*>(box), DType::kInt32, {2, 3});
  const auto read = checkpoint->read("w", Box::make({1, 1}, {2, 3}).value(), target);
  ASSERT_TRUE(read) << read.error().what();
  EXPECT_EQ(box[0][0], 7);
  EXPECT_EQ(box[1][2], 15);
}

TEST_F(SaveLoad, ConvertsOnlyFloatsByDefault) {
  ASSERT_TRUE(save(directory_, SampleState(3).dict()));
  double doubles[7] = {};
  StateDict state;
  ASSERT_TRUE(state.add_tensor("bias", TensorView::contiguous(static_cast<void*>(doubles), DType::kFloat64, {7})));
  const auto report = load(directory_, state);
  ASSERT_TRUE(report) << report.error().what();
  EXPECT_EQ(doubles[6], 3.0);
  ASSERT_EQ(report->conversions.size(), 1u);

  std::int64_t integers[7] = {};
  StateDict other;
  ASSERT_TRUE(other.add_tensor("bias", TensorView::contiguous(static_cast<void*>(integers), DType::kInt64, {7})));
  EXPECT_EQ(load(directory_, other).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(integers[0], 0);
  LoadOptions cast;
  cast.allow_cast = true;
  ASSERT_TRUE(load(directory_, other, cast));
  EXPECT_EQ(integers[6], 3);
}

TEST_F(SaveLoad, NamesMismatchedEntries) {
  ASSERT_TRUE(save(directory_, SampleState(3).dict()));
  float memory[8] = {};
  StateDict shape;
  ASSERT_TRUE(shape.add_tensor("bias", TensorView::contiguous(static_cast<void*>(memory), DType::kFloat32, {8})));
  const auto wrong_shape = load(directory_, shape);
  ASSERT_FALSE(wrong_shape);
  EXPECT_EQ(wrong_shape.error().key(), "bias");
  EXPECT_EQ(wrong_shape.error().expected(), "[8]");
  EXPECT_EQ(wrong_shape.error().actual(), "[7]");

  StateDict missing;
  ASSERT_TRUE(missing.add_value("nowhere", Value(1)));
  EXPECT_EQ(load(directory_, missing).error().code(), ErrorCode::kMissingKey);
  LoadOptions partial;
  partial.allow_partial = true;
  const auto report = load(directory_, missing, partial);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->missing, std::vector<std::string>{"nowhere"});

  StateDict kind;
  ASSERT_TRUE(kind.add_value("bias", Value(1)));
  EXPECT_EQ(load(directory_, kind).error().code(), ErrorCode::kInvalidArgument);
}

TEST_F(SaveLoad, VerifyFindsEveryFlippedByte) {
  ASSERT_TRUE(save(directory_, SampleState(3).dict()));
  const fs::path file = directory_ / "__0_0.distcp";
  std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
  const auto size = static_cast<std::streamoff>(fs::file_size(file));
  ASSERT_TRUE(verify(directory_).value().problems.empty());
  for (std::streamoff offset = 0; offset < size; offset += 13) {
    bytes.seekg(offset);
    const char old = static_cast<char>(bytes.get());
    bytes.seekp(offset);
    bytes.put(static_cast<char>(old ^ 0x10)).flush();
    const auto report = verify(directory_);
    EXPECT_TRUE(report && !report->problems.empty()) << "offset " << offset;
    bytes.seekp(offset);
    bytes.put(old).flush();
  }
}

// python/tests/test_tool_verify.py and test_interrupt.py test a hanging read and a Ctrl-C in the middle of a large
// checkpoint.
TEST_F(SaveLoad, CallingThreadInterruptsVerify) {
  ASSERT_TRUE(save(directory_, SampleState(3).dict()));
  VerifyOptions options;
  int questions = 0;
  bool is_interrupted = false;
  const std::thread::id caller = std::this_thread::get_id();
  options.interrupted = [&] {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    ++questions;
    return is_interrupted;
  };
  ASSERT_TRUE(verify(directory_, options));
  EXPECT_GE(questions, 1);
  is_interrupted = true;
  questions = 0;
  const auto report = verify(directory_, options);
  EXPECT_EQ(questions, 1) << "asked again after a yes";
  if (!report) {  // else the check had ended before the interruption
    EXPECT_EQ(report.error().code(), ErrorCode::kCancelled);
  }
}

TEST_F(SaveLoad, DamagedCommitRecordIsAnError) {
  ASSERT_TRUE(save(directory_, SampleState(1).dict()));
  const fs::path metadata = directory_ / ".metadata";
  const auto whole = fs::file_size(metadata);
  // The magic is gone, then the whole footer, then a part of the body.
  for (const auto& left : {whole - 8, whole - 40, whole - 60}) {
    fs::resize_file(metadata, left);
    const auto opened = open(directory_);
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code(), ErrorCode::kCorrupt);
    EXPECT_EQ(opened.error().file(), ".metadata");
  }
  // The damaged record does not prevent the next save, which also removes the files that the record named.
  ASSERT_TRUE(save(directory_, SampleState(2).dict()));
  EXPECT_TRUE(verify(directory_).value().problems.empty());
  EXPECT_EQ(names().size(), 2u);
}

TEST_F(SaveLoad, SaysThatThereIsNoCheckpoint) {
  EXPECT_EQ(open(directory_).error().code(), ErrorCode::kNotFound);
  fs::create_directories(directory_);
  EXPECT_EQ(open(directory_).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(verify(directory_).error().code(), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace cairn

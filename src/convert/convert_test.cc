#include <cairn/cairn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <string>
#include <vector>

#include "storage/testing/scratch_directory.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
constexpr CheckpointFormat kFormats[] = {CheckpointFormat::kDcp, CheckpointFormat::kTorchSave,
                                         CheckpointFormat::kSafetensors};

class Conversions : public testing::Test {
 protected:
  Conversions() : weights_(1'500'000) {  // above a buffer of 4 MiB
    std::iota(weights_.begin(), weights_.end(), 1.0F);
    StateDict state;
    const TensorView whole = TensorView::contiguous(weights_.data(), DType::kFloat32, {1500, 1000});
    EXPECT_TRUE(state.add_tensor("model.w", whole));
    EXPECT_TRUE(state.add_tensor("model.b", TensorView::contiguous(weights_.data(), DType::kFloat32, {7})));
    EXPECT_TRUE(state.add_value("step", 7));
    EXPECT_TRUE(save(source(), state));
  }

  fs::path source() const { return root_ / "source"; }
  fs::path target(CheckpointFormat format, const std::string& name = "target") const {
    switch (format) {
      case CheckpointFormat::kTorchSave: return root_ / (name + ".pt");
      case CheckpointFormat::kSafetensors: return root_ / (name + ".safetensors");
      default: return root_ / name;
    }
  }

  static ConvertReport converted(const fs::path& from, const fs::path& to, const ConvertOptions& options) {
    auto report = convert(from, to, options);
    EXPECT_TRUE(report) << report.error().what();
    return report ? *std::move(report) : ConvertReport();
  }

  std::vector<float> elements_of(const fs::path& checkpoint, const std::string& key) const {
    const auto opened = open(checkpoint);
    EXPECT_TRUE(opened) << opened.error().what();
    const CatalogTensor* tensor = opened->catalog().find_tensor(key);
    EXPECT_NE(tensor, nullptr);
    std::vector<float> elements(static_cast<std::size_t>(element_count(tensor->shape).value()));
    const TensorView view = TensorView::contiguous(elements.data(), DType::kFloat32, tensor->shape);
    const auto read = opened->read(key, Box::whole(tensor->shape).value(), view, {.verify = Verify::kFull});
    EXPECT_TRUE(read) << read.error().what();
    return elements;
  }

  // Flips a bit of the element 1'000'000 of model.w.
  static void flip(const fs::path& file) {
    std::ifstream in(file, std::ios::binary);
    std::string content((std::istreambuf_iterator<char>(in)), {});
    const float element = 1'000'001;
    const std::string bytes(reinterpret_cast<const char*>(&element), sizeof element);
    const std::size_t place = content.find(bytes);
    ASSERT_NE(place, std::string::npos);
    content[place] = static_cast<char>(content[place] ^ 1);
    std::ofstream(file, std::ios::binary) << content;
  }

  std::vector<float> weights_;
  storage::ScratchDirectory scratch_;
  fs::path root_ = scratch_.path();
};

TEST_F(Conversions, FromEachFormatToEachOther) {
  for (const CheckpointFormat first : kFormats) {
    converted(source(), target(first, "first"), {.to = first, .keys = {"model"}});
    for (const CheckpointFormat second : kFormats) {
      ConvertOptions options{.to = second, .overwrite = true};
      std::uint64_t done = 0;
      options.progress = [&done](const ConvertProgress& progress) { done = progress.bytes_done; };
      const ConvertReport report = converted(target(first, "first"), target(second), options);
      EXPECT_EQ(report.from, first);
      EXPECT_EQ(report.tensors, 2U);
      EXPECT_EQ(report.tensor_bytes, done);
      EXPECT_EQ(elements_of(target(second), "model.w"), weights_);
      for (const std::string& file : report.files) EXPECT_TRUE(fs::exists(report.directory / file)) << file;
      EXPECT_TRUE(verify(target(second))->problems.empty());
    }
  }
}

TEST_F(Conversions, KeysNamesDTypesAndFiles) {
  const ConvertReport report = converted(source(), root_ / "hf",
                                         {.to = CheckpointFormat::kSafetensors,
                                          .keys = {"model"},
                                          .renames = {{"model.*", "layers.*.weight"}},
                                          .dtype = DType::kBFloat16,
                                          .max_shard_bytes = 1000});
  EXPECT_EQ(report.files.back(), "model.safetensors.index.json");
  EXPECT_EQ(report.files.size(), 3U);
  EXPECT_EQ(report.conversions.size(), 2U);
  EXPECT_EQ(report.tensor_bytes, 2 * (1'500'000U + 7));
  const Checkpoint model = open(root_ / "hf").value();
  EXPECT_EQ(model.catalog().find_tensor("layers.w.weight")->dtype, DType::kBFloat16);
  const ConvertReport resharded = converted(source(), root_ / "four", {.file_count = 4});
  EXPECT_EQ(resharded.files.size(), 5U);
  EXPECT_EQ(resharded.values, 1U);
  EXPECT_EQ(elements_of(root_ / "four", "model.w"), weights_);
  EXPECT_EQ(open(root_ / "four")->read_value("step").value(), Value(7));
}

TEST_F(Conversions, WrongArgumentsLeaveNoTarget) {
  const fs::path none = root_ / "none";
  const auto code_of = [&](const ConvertOptions& options) { return convert(source(), none, options).error().code(); };
  EXPECT_EQ(code_of({.keys = {"nothing.*"}}), ErrorCode::kMissingKey);
  EXPECT_EQ(code_of({.renames = {{"nothing", "x"}}}), ErrorCode::kMissingKey);
  EXPECT_EQ(code_of({.renames = {{"model.*", "x"}}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of({.dtype = DType::kInt8}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of({.file_count = 0}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of({.to = CheckpointFormat::kSafetensors}), ErrorCode::kUnsupported);  // the value `step`
  EXPECT_EQ(convert(source(), source(), {}).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(convert(root_ / "missing", none, {}).error().code(), ErrorCode::kNotFound);
  EXPECT_FALSE(fs::exists(none));
  converted(source(), none, {});
  EXPECT_EQ(code_of({}), ErrorCode::kInvalidArgument);  // exists
}

TEST_F(Conversions, AFlippedBitOfAnyFormatIsFound) {
  for (const CheckpointFormat from : kFormats) {
    const fs::path damaged = target(from, "damaged");
    converted(source(), damaged, {.to = from, .keys = {"model"}});
    const std::string name = from == CheckpointFormat::kDcp ? "__0_0.distcp" : damaged.filename().string();
    flip(from == CheckpointFormat::kDcp ? damaged / name : damaged);
    for (const CheckpointFormat to : kFormats) {
      const auto report = convert(damaged, target(to, "none"), {.to = to});
      ASSERT_FALSE(report);
      EXPECT_EQ(report.error().code(), ErrorCode::kCorrupt);
      EXPECT_EQ(report.error().key(), "model.w");
      EXPECT_EQ(report.error().file(), name);
      EXPECT_TRUE(report.error().offset());
      EXPECT_FALSE(fs::exists(target(to, "none")));
    }
  }
}

TEST_F(Conversions, AnInterruptionLeavesNoTarget) {
  for (const CheckpointFormat to : kFormats) {
    const ConvertOptions options{.to = to, .keys = {"model"}, .interrupted = [] { return true; }};
    const auto report = convert(source(), target(to), options);
    // A conversion that ends within the first 20 ms is not asked.
    EXPECT_EQ(report ? ErrorCode::kCancelled : report.error().code(), ErrorCode::kCancelled);
    EXPECT_EQ(fs::exists(target(to)), report.has_value());
  }
}

}  // namespace
}  // namespace cairn

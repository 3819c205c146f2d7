#include <cairn/cairn.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "plan/testing/random_tiling.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using Kind = KeyDifference::Kind;

class Diff : public testing::Test {
 protected:
  Diff() {
    fs::create_directories("build");
    std::string pattern = (fs::current_path() / "build" / "diff-XXXXXX").string();
    root_ = mkdtemp(pattern.data());
  }
  ~Diff() override { fs::remove_all(root_); }

  fs::path a() const { return root_ / "a"; }
  fs::path b() const { return root_ / "b"; }

  static void save_in(const fs::path& directory, const StateDict& state) {
    const auto saved = save(directory, state);
    ASSERT_TRUE(saved) << saved.error().what();
  }

  DiffReport report_of(const DiffOptions& options = {}) const {
    auto report = diff(a(), b(), options);
    EXPECT_TRUE(report) << report.error().what();
    return report ? *std::move(report) : DiffReport();
  }

  fs::path root_;
};

StateDict state_of(std::vector<float>& weights, Value value) {
  StateDict state;
  const auto count = static_cast<std::int64_t>(weights.size());
  EXPECT_TRUE(state.add_tensor("w", TensorView::contiguous(weights.data(), DType::kFloat32, {count / 2, 2})));
  EXPECT_TRUE(state.add_value("v", std::move(value)));
  return state;
}

TEST_F(Diff, EqualCheckpoints) {
  std::vector<float> weights{1, 2, 3, 4};
  save_in(a(), state_of(weights, 7));
  save_in(b(), state_of(weights, 7));
  const DiffReport report = report_of();
  EXPECT_TRUE(report.differences.empty());
  EXPECT_EQ(report.tensors, 1U);
  EXPECT_EQ(report.values, 1U);
  EXPECT_EQ(report.bytes_compared, 32U);
}

TEST_F(Diff, DifferentElementsAndValues) {
  std::vector<float> weights{1, 2, 3, 4};
  save_in(a(), state_of(weights, 7));
  weights[3] = 4.5F;
  save_in(b(), state_of(weights, 8));
  const DiffReport report = report_of();
  ASSERT_EQ(report.differences.size(), 2U);
  const KeyDifference& tensor = report.differences[report.differences[0].key == "w" ? 0 : 1];
  EXPECT_EQ(tensor.kind, Kind::kElements);
  ASSERT_TRUE(tensor.elements);
  EXPECT_EQ(tensor.elements->differing, 1U);
  EXPECT_EQ(tensor.elements->largest_absolute, 0.5);
  EXPECT_EQ(tensor.elements->largest_at, (Extents{1, 1}));
  const KeyDifference& value = report.differences[report.differences[0].key == "w" ? 1 : 0];
  EXPECT_EQ(value.kind, Kind::kValue);
  EXPECT_EQ(value.a, "7");
  EXPECT_EQ(value.b, "8");

  const DiffReport tolerant = report_of({.tolerance = 0.2, .keys = {"w"}});
  EXPECT_TRUE(tolerant.differences.empty());
  ASSERT_EQ(tolerant.tolerated.size(), 1U);
  EXPECT_EQ(tolerant.tolerated[0].elements->unequal, 1U);
}

TEST_F(Diff, KeysKindsShapesAndDTypes) {
  std::vector<float> memory{1, 2, 3, 4};
  std::vector<std::int32_t> integers{1, 2, 3, 4};
  StateDict left;
  StateDict right;
  const auto view = [&memory](Extents shape) { return TensorView::contiguous(memory.data(), DType::kFloat32, shape); };
  ASSERT_TRUE(left.add_tensor("gone", view({4})));
  ASSERT_TRUE(left.add_tensor("kind", view({4})));
  ASSERT_TRUE(left.add_tensor("shape", view({4})));
  ASSERT_TRUE(left.add_tensor("dtype", view({4})));
  ASSERT_TRUE(left.add_tensor("half", view({2})));
  ASSERT_TRUE(right.add_value("kind", 1));
  ASSERT_TRUE(right.add_tensor("shape", view({2, 2})));
  ASSERT_TRUE(right.add_tensor("dtype", TensorView::contiguous(integers.data(), DType::kInt32, {4})));
  const std::vector<std::uint16_t> half{0x3F80, 0x4040};  // bfloat16: 1, 3
  ASSERT_TRUE(right.add_tensor("half", TensorView::contiguous(half.data(), DType::kBFloat16, {2})));
  ASSERT_TRUE(right.add_value("new", "text"));
  save_in(a(), left);
  save_in(b(), right);
  const DiffReport report = report_of();
  std::vector<std::pair<std::string, Kind>> found;
  for (const KeyDifference& difference : report.differences) found.emplace_back(difference.key, difference.kind);
  EXPECT_EQ(found, (std::vector<std::pair<std::string, Kind>>{{"gone", Kind::kOnlyInA},
                                                              {"kind", Kind::kKind},
                                                              {"shape", Kind::kShape},
                                                              {"dtype", Kind::kDType},
                                                              {"half", Kind::kDType},
                                                              {"new", Kind::kOnlyInB}}));
  EXPECT_EQ(report.differences[2].a, "float32 [4]");
  EXPECT_EQ(report.differences[2].b, "float32 [2, 2]");
  EXPECT_FALSE(report.differences[3].elements);
  EXPECT_EQ(report.differences[4].elements->largest_absolute, 1);
}

TEST_F(Diff, OtherChunksAreNoDifference) {
  std::mt19937 random(9);
  const Extents shape{40, 30, 1000};  // 4.8 MB: two windows
  std::vector<float> elements(40 * 30 * 1000);
  std::iota(elements.begin(), elements.end(), 0.0F);
  const auto save_chunks = [&](const fs::path& directory) {
    std::vector<Box> chunks;
    plan::shatter(Box::whole(shape).value(), 3, random, chunks);
    StateDict state;
    for (const Box& chunk : chunks) {
      const Extents& at = chunk.offsets();
      float* const first = elements.data() + at[0] * 30000 + at[1] * 1000 + at[2];
      const TensorView view{first, DType::kFloat32, chunk.sizes(), {30000, 1000, 1}};
      ASSERT_TRUE(state.add_chunk("w", view, shape, at));
    }
    save_in(directory, state);
  };
  save_chunks(a());
  save_chunks(b());
  EXPECT_TRUE(report_of().differences.empty());
  elements[39 * 30000 + 29 * 1000 + 999] = 0;
  save_chunks(b());
  const DiffReport report = report_of();
  ASSERT_EQ(report.differences.size(), 1U);
  EXPECT_EQ(report.differences[0].elements->differing, 1U);
  EXPECT_EQ(report.differences[0].elements->first_differing, (Extents{39, 29, 999}));
}

TEST_F(Diff, EveryFlippedDataByteIsAnError) {
  std::vector<float> weights(64, 2);
  save_in(a(), state_of(weights, 7));
  save_in(b(), state_of(weights, 7));
  const fs::path file = b() / "__0_0.distcp";
  const Checkpoint checkpoint = open(b()).value();
  for (const std::string key : {"w", "v"}) {
    const CatalogTensor* tensor = checkpoint.catalog().find_tensor(key);
    const ItemLocation& place =
        tensor != nullptr ? tensor->locations[0] : checkpoint.catalog().find_value(key)->location;
    const auto flip = [&] {
      std::fstream stream(file, std::ios::binary | std::ios::in | std::ios::out);
      const auto at = static_cast<std::streamoff>(place.offset + (tensor != nullptr ? place.length / 2 : 50));
      stream.seekg(at);
      const int byte = stream.get();
      stream.seekp(at);
      stream.put(static_cast<char>(byte ^ 1));
    };
    flip();
    const auto report = diff(a(), b());
    ASSERT_FALSE(report);
    EXPECT_EQ(report.error().code(), ErrorCode::kCorrupt);
    EXPECT_EQ(report.error().key(), key);
    EXPECT_NE(report.error().doing().find(b().string()), std::string::npos);
    flip();
  }
  EXPECT_TRUE(report_of().differences.empty());
}

TEST_F(Diff, FlippedByteOfAFurtherFormat) {
  std::vector<float> weights(2'000'000);  // two windows
  std::iota(weights.begin(), weights.end(), 1.0F);
  save_in(a(), state_of(weights, 7));
  for (const auto& [format, name] :
       {std::pair(CheckpointFormat::kTorchSave, "b.pt"), std::pair(CheckpointFormat::kSafetensors, "b.safetensors")}) {
    const fs::path file = root_ / name;
    ASSERT_TRUE(convert(a(), file, {.to = format, .keys = {"w"}}));
    ASSERT_TRUE(diff(a(), file, {.keys = {"w"}})->differences.empty());
    const ItemLocation place = open(file)->catalog().find_tensor("w")->locations[0];
    const auto at = static_cast<std::streamoff>(place.offset + place.length - 5000);
    std::fstream stream(file, std::ios::binary | std::ios::in | std::ios::out);
    stream.seekg(at);
    const int byte = stream.get();
    stream.seekp(at);
    stream.put(static_cast<char>(byte ^ 1));
    stream.close();
    for (const auto& sides : {std::pair(a(), file), std::pair(file, a())}) {
      const auto report = diff(sides.first, sides.second, {.keys = {"w"}});
      ASSERT_FALSE(report);
      EXPECT_EQ(report.error().code(), ErrorCode::kCorrupt);
      EXPECT_EQ(report.error().key(), "w");
      EXPECT_EQ(report.error().file(), name);
      EXPECT_NE(report.error().doing().find(name), std::string::npos);
    }
  }
}

TEST_F(Diff, ThousandsOfSmallTensors) {
  std::vector<std::int16_t> memory(3000);
  std::iota(memory.begin(), memory.end(), std::int16_t{0});
  const auto state = [&memory] {
    StateDict made;
    for (std::size_t i = 0; i < memory.size(); ++i) {
      const TensorView view = TensorView::contiguous(&memory[i], DType::kInt16, {1});
      EXPECT_TRUE(made.add_tensor("t" + std::to_string(i), view));
    }
    return made;
  };
  save_in(a(), state());
  memory[1234] = -1;
  save_in(b(), state());
  const DiffReport report = report_of();
  EXPECT_EQ(report.tensors, 3000U);
  ASSERT_EQ(report.differences.size(), 1U);
  EXPECT_EQ(report.differences[0].key, "t1234");
}

TEST_F(Diff, RefusesWrongOptions) {
  std::vector<float> weights{1, 2};
  save_in(a(), state_of(weights, 7));
  save_in(b(), state_of(weights, 7));
  EXPECT_EQ(diff(a(), b(), {.tolerance = -1.0}).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(diff(a(), b(), {.keys = {"nothing.*"}}).error().code(), ErrorCode::kMissingKey);
  EXPECT_EQ(diff(a(), root_ / "none").error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(diff(a(), b(), {.interrupted = [] { return true; }}).error().code(), ErrorCode::kCancelled);
}

}  // namespace
}  // namespace cairn

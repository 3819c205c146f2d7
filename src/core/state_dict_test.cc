#include <cairn/state_dict.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

namespace cairn {
namespace {

float memory[4];

TensorView view_of(Extents sizes) { return TensorView::contiguous(memory, DType::kFloat32, std::move(sizes)); }

TEST(Fqn, JoinsKeysAndPositions) {
  EXPECT_EQ(fqn_of({}), "");
  EXPECT_EQ(fqn_of({"optim", "state", std::int64_t{-12}, "a key that is too long to lie inside of its string"}),
            "optim.state.-12.a key that is too long to lie inside of its string");
}

TEST(StateDict, FindsEveryEntryByItsName) {
  constexpr int kEntries = 5000;
  StateDict state;
  state.reserve(100);  // for some entries; the table grows for the rest
  for (int i = 0; i < kEntries; ++i) {
    ASSERT_TRUE(state.add_tensor(Path{"layers", std::int64_t{i}}, view_of({2, 2})));
    ASSERT_EQ(state.find("layers." + std::to_string(i + 1)), nullptr);
  }
  for (int i = 0; i < kEntries; ++i) {
    const Entry* entry = state.find("layers." + std::to_string(i));
    ASSERT_EQ(entry, &state.entries()[static_cast<std::size_t>(i)]);
  }
  EXPECT_EQ(StateDict().find("layers.0"), nullptr);
}

TEST(StateDict, RefusesANameThatIsTaken) {
  StateDict state;
  ASSERT_TRUE(state.add_tensor(Path{"a", "b"}, view_of({4})));
  ASSERT_TRUE(state.add_value("value", Value(1.5)));
  for (const auto& added :
       {state.add_tensor("a.b", view_of({4})), state.add_value("a.b", Value(1.5)),
        state.add_serialized(Path{"a.b"}, SerializedValue{}), state.add_serialized(Path{"a.b"}, SerializedTensor{})}) {
    ASSERT_FALSE(added);
    EXPECT_EQ(added.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(added.error().key(), "a.b");
  }
  EXPECT_FALSE(state.add_chunk("value", view_of({4}), {4}, {0}));
  EXPECT_EQ(state.entries().size(), 2U);
}

TEST(StateDict, MixesSerializedAndPlainChunks) {
  StateDict state;
  const auto rows = [](std::int64_t first, std::int64_t count, DType dtype = DType::kFloat32) {
    return SerializedTensor{"", dtype, {8}, false, Box::make({first}, {count}).value()};
  };
  ASSERT_TRUE(state.add_serialized(Path{"w"}, rows(0, 2)));
  ASSERT_TRUE(state.add_chunk("w", view_of({4}), {8}, {2}));
  ASSERT_TRUE(state.add_serialized(Path{"w"}, rows(6, 2)));
  ASSERT_TRUE(state.add_serialized(Path{"whole"}, SerializedTensor{"", DType::kFloat32, {8}}));
  for (const auto& added :
       {state.add_serialized(Path{"w"}, rows(6, 3)), state.add_chunk("whole", view_of({4}), {8}, {0}),
        state.add_serialized(Path{"w"}, rows(0, 2, DType::kInt8)),
        state.add_serialized(Path{"w"}, SerializedTensor{"", DType::kFloat32, {8}})}) {
    ASSERT_FALSE(added);
    EXPECT_EQ(added.error().code(), ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(state.entries().size(), 4U);
}

TEST(StateDict, RefusesStridesThatNoMemoryHas) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
  StateDict state;
  // One dimension overflows, the bytes overflow, the sum of the dimensions overflows.
  for (const Extents& strides : {Extents{kMost, 1}, Extents{1, kLeast}, Extents{kMost / 4, 1},
                                 Extents{kMost / 6, kMost / 6}, Extents{kMost / 6, -(kMost / 6)}}) {
    const auto added = state.add_tensor("w", {memory, DType::kFloat32, {2, 2}, strides});
    ASSERT_FALSE(added) << to_string(strides);
    EXPECT_EQ(added.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(added.error().key(), "w");
    EXPECT_FALSE(state.add_chunk("w", {memory, DType::kFloat32, {2, 2}, strides}, {4, 2}, {0, 0}));
  }
  // A stride is never used in a dimension of one element, or in a tensor without elements.
  EXPECT_TRUE(state.add_tensor("one", {memory, DType::kFloat32, {1, 2}, {kMost, 1}}));
  EXPECT_TRUE(state.add_tensor("none", {nullptr, DType::kFloat32, {2, 0}, {kLeast, kMost}}));
  EXPECT_TRUE(state.add_tensor("expanded", {memory, DType::kFloat32, {2, 4}, {0, -1}}));
}

TEST(StateDict, TakesChunksOfOneTensor) {
  StateDict state;
  ASSERT_TRUE(state.add_chunk("w", view_of({2}), {4}, {0}));
  ASSERT_TRUE(state.add_chunk("w", view_of({2}), {4}, {2}));
  EXPECT_EQ(state.find("w"), &state.entries()[0]);
  EXPECT_FALSE(state.add_chunk("w", view_of({2}), {6}, {4})) << "of another shape";
  EXPECT_FALSE(state.add_chunk("w", TensorView::contiguous(memory, DType::kInt32, {2}), {4}, {2}));
  EXPECT_FALSE(state.add_tensor("w", view_of({4}))) << "a whole tensor shares its name with no chunk";
  EXPECT_EQ(state.entries().size(), 2U);
}

TEST(StateDict, RefusesViewsThatDoNotFit) {
  StateDict state;
  const auto added = state.add_tensor("w", {memory, DType::kFloat32, {2, 2}, {2}});
  ASSERT_FALSE(added);
  EXPECT_EQ(added.error().key(), "w");
  EXPECT_FALSE(state.add_tensor("w", {nullptr, DType::kFloat32, {1}, {1}})) << "no memory";
  EXPECT_FALSE(state.add_tensor("w", {memory, DType::kFloat32, {-1}, {1}}));
  EXPECT_FALSE(state.add_chunk("w", view_of({2}), {4}, {3})) << "beyond its tensor";
  EXPECT_EQ(state.find("w"), nullptr);
  EXPECT_TRUE(state.add_tensor("w", {nullptr, DType::kFloat32, {0, 3}, {3, 1}}));
}

TEST(StateDict, FindsAValueByItsName) {
  StateDict state;
  ASSERT_TRUE(state.add_value("v", Value(2.5)));
  ASSERT_TRUE(state.add_tensor("w", view_of({4})));
  ASSERT_NE(state.value("v"), nullptr);
  EXPECT_EQ(*state.value("v")->get_if<double>(), 2.5);
  EXPECT_EQ(state.value("w"), nullptr);
  EXPECT_EQ(state.value("x"), nullptr);
}

}  // namespace
}  // namespace cairn

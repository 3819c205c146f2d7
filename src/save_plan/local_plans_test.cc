#include "save_plan/local_plans.h"

#include <cairn/version.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "format/manifest/varint.h"
#include "save/save_items.h"

namespace cairn::save_plan {
namespace {

std::array<float, 64> buffer_of_all{};

TensorView view(Extents sizes) {
  return TensorView::contiguous(buffer_of_all.data(), DType::kFloat32, std::move(sizes));
}

std::string message_of(const StateDict& state, const LocalPlanOptions& options = {}) {
  const auto items = checkpointer::SaveItems::make(state);
  return encode_local_plan(items->sources(), options).value();
}

// Items of every form, whose names and shapes repeat in part.
StateDict every_form() {
  StateDict state;
  EXPECT_TRUE(state.add_tensor(Path{"model", "layers", "weight"}, view({4, 8})));
  EXPECT_TRUE(state.add_chunk(Path{"model", "layers", "rows"}, view({2, 8}), {4, 8}, {2, 0}));
  EXPECT_TRUE(state.add_chunk(Path{"model", "layers", "box"}, view({2, 3}), {4, 8}, {1, 5}, {.replicated = true}));
  EXPECT_TRUE(state.add_chunk(Path{"model", "flat"}, view({7}), {70}, {14}, {.requires_grad = true}));
  EXPECT_TRUE(state.add_tensor(Path{"model", "scalar"}, view({})));
  EXPECT_TRUE(state.add_tensor(Path{"deep"}, view({1, 2, 1, 2, 1})));
  EXPECT_TRUE(state.add_tensor(Path{"deep too"}, view({1, 2, 1, 2, 1})));
  EXPECT_TRUE(state.add_tensor(Path{"list", std::int64_t{3}}, view({0})));
  EXPECT_TRUE(state.add_value(Path{"step"}, Value(7)));
  EXPECT_TRUE(state.add_serialized(Path{"opaque", "whole"}, SerializedTensor{"archive", DType::kFloat32, {2, 8}}));
  const Box rows = Box::make({2, 0}, {2, 8}).value();
  const SerializedTensor chunk{
      "rows", DType::kFloat32, {4, 8}, true, rows, std::make_shared<const Extents>(Extents{1, 2})};
  EXPECT_TRUE(state.add_serialized(Path{"opaque", "rows"}, chunk));
  return state;
}

TEST(LocalPlans, HoldTheItemsOfEveryRank) {
  const StateDict state = every_form();
  LocalPlans plans;
  for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(plans.add(message_of(state, {.file_per_item = rank == 1})));
  ASSERT_EQ(plans.plans().size(), 3u);
  EXPECT_TRUE(plans.file_per_item(1) && !plans.file_per_item(2) && !plans.names_taken());
  for (const plan::LocalPlan& plan : plans.plans()) {
    ASSERT_EQ(plan.size(), state.entries().size());
    for (std::size_t i = 0; i < plan.size(); ++i) {
      const Entry& entry = state.entries()[i];
      EXPECT_EQ(plan[i].fqn, entry.fqn);
      EXPECT_EQ(plan[i].fqn.data(), plans.plans()[0][i].fqn.data()) << "a key is kept once";
      EXPECT_EQ(plans.path_of(plan[i].fqn), entry.path);
      const auto* tensor = std::get_if<TensorEntry>(&entry.content);
      EXPECT_EQ(plan[i].kind == plan::LocalItem::Kind::kTensor, tensor != nullptr);
      if (const auto* serialized = std::get_if<SerializedTensor>(&entry.content)) {
        EXPECT_EQ(plan[i].kind, plan::LocalItem::Kind::kSerializedTensor);
        EXPECT_EQ(plan[i].shape, serialized->shape);
        EXPECT_EQ(plan[i].box, serialized->chunk ? *serialized->chunk : Box::whole(serialized->shape).value());
        EXPECT_EQ(plan[i].bytes, serialized->payload.size());
        EXPECT_EQ(plan[i].requires_grad, serialized->requires_grad);
      }
      if (tensor == nullptr) continue;
      EXPECT_EQ(plan[i].shape, tensor->global_shape);
      EXPECT_EQ(plan[i].box, tensor->box);
      EXPECT_EQ(plan[i].bytes, 4 * static_cast<std::uint64_t>(tensor->box.element_count()));
      EXPECT_EQ(plan[i].replicated, tensor->traits.replicated);
      EXPECT_EQ(plan[i].requires_grad, tensor->traits.requires_grad);
    }
  }
  plans.drop(0);
  EXPECT_TRUE(plans.plans()[0].empty());
  EXPECT_EQ(plans.plans()[1].size(), state.entries().size());
}

TEST(LocalPlans, HoldTheStridesToRecord) {
  const auto recorded = [](Extents strides) {
    return TensorTraits{.strides = std::make_shared<const Extents>(std::move(strides))};
  };
  const auto opaque = std::make_shared<const Extents>(Extents{0, 0, 7});
  StateDict state;
  EXPECT_TRUE(state.add_tensor(Path{"none"}, view({4, 8})));
  EXPECT_TRUE(state.add_tensor(Path{"rows"}, view({4, 8}), recorded({8, 1})));
  EXPECT_TRUE(state.add_tensor(Path{"columns"}, view({4, 8}), recorded({1, 4})));
  EXPECT_TRUE(state.add_tensor(Path{"scalar"}, view({}), recorded({})));
  EXPECT_TRUE(state.add_chunk(Path{"chunk"}, view({2, 8}), {4, 8}, {2, 0}, recorded({8, 1})));
  EXPECT_TRUE(state.add_tensor(Path{"deep"}, view({1, 2, 1, 2, 1}), recorded({4, 2, 2, 1, 1})));
  EXPECT_TRUE(state.add_value(Path{"step"}, Value(7)));
  EXPECT_TRUE(
      state.add_serialized(Path{"opaque"}, SerializedTensor{"archive", DType::kFloat32, {2, 8}, {}, {}, opaque}));
  const std::vector<std::optional<Extents>> expected = {std::nullopt,  Extents{8, 1},          Extents{1, 4}, Extents{},
                                                        Extents{8, 1}, Extents{4, 2, 2, 1, 1}, std::nullopt,  *opaque};
  LocalPlans plans;
  for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(plans.add(message_of(state)));
  for (const plan::LocalPlan& plan : plans.plans()) {
    ASSERT_EQ(plan.size(), expected.size());
    for (std::size_t i = 0; i < plan.size(); ++i) {
      const SharedExtents& found = plans.strides()[plan[i].strides];
      ASSERT_EQ(found != nullptr, expected[i].has_value()) << plan[i].fqn;
      if (found) {
        EXPECT_EQ(*found, *expected[i]) << plan[i].fqn;
      }
    }
  }
  EXPECT_EQ(plans.plans()[0][1].strides, plans.plans()[1][4].strides) << "a list is kept once";
}

TEST(LocalPlans, RefuseStridesThatCannotBe) {
  for (const Extents& strides : {Extents{8, -1}, Extents(65, 1)}) {
    StateDict state;
    const TensorTraits traits{.strides = std::make_shared<const Extents>(strides)};
    ASSERT_TRUE(state.add_tensor(Path{"odd"}, view({4, 8}), traits));
    const auto items = checkpointer::SaveItems::make(state);
    const auto message = encode_local_plan(items->sources(), {});
    ASSERT_FALSE(message);
    EXPECT_EQ(message.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(message.error().key(), "odd");
  }
}

TEST(LocalPlans, KeepTheDtypeOfEachItem) {
  const std::vector<DType> dtypes{DType::kInt32, DType::kFloat32, DType::kFloat32, DType::kInt32};
  StateDict state;
  for (std::size_t i = 0; i < dtypes.size(); ++i) {
    const auto same_shape = TensorView::contiguous(buffer_of_all.data(), dtypes[i], {4, 8});
    ASSERT_TRUE(state.add_tensor(Path{std::to_string(i)}, same_shape));
  }
  LocalPlans plans;
  ASSERT_TRUE(plans.add(message_of(state)));
  for (std::size_t i = 0; i < dtypes.size(); ++i) EXPECT_EQ(plans.plans()[0][i].dtype, dtypes[i]) << i;
}

TEST(LocalPlans, KeepTheFirstPathOfAKey) {
  StateDict joined, split, none;
  ASSERT_TRUE(joined.add_tensor(Path{"a.b", "c"}, view({2})));
  ASSERT_TRUE(split.add_tensor(Path{"a", "b.c"}, view({2})));
  LocalPlans plans;
  ASSERT_TRUE(plans.add(message_of(joined)));
  ASSERT_TRUE(plans.add(message_of(split)));
  ASSERT_TRUE(plans.add(message_of(split, {.record_paths = false})));
  EXPECT_EQ(plans.path_of("a.b.c"), (Path{"a.b", "c"}));
}

// The shards of a regular state: the target for large jobs.
TEST(LocalPlans, TakeTwentyBytesPerShardAtMost) {
  constexpr std::int64_t kRanks = 16384;
  constexpr int kTensors = 1000;
  StateDict state;
  for (int i = 0; i < kTensors; ++i) {
    const std::string layer = "layers." + std::to_string(i / 10);
    ASSERT_TRUE(state.add_chunk(Path{"model", layer + ".mlp.weight_" + std::to_string(i % 10)}, view({64}),
                                {64 * kRanks}, {64 * (kRanks - 1)}));
  }
  EXPECT_LE(message_of(state).size(), 20u * kTensors);
}

TEST(LocalPlans, RefuseEveryTruncatedMessage) {
  const std::string message = message_of(every_form());
  for (std::size_t length = 0; length < message.size(); ++length) {
    LocalPlans plans;
    const auto added = plans.add(std::string_view(message).substr(0, length));
    ASSERT_FALSE(added) << length;
  }
}

// The message of an item of one element at the origin of a tensor with the dtype and the shape.
std::string message_with(unsigned char dtype, const std::vector<std::uint64_t>& shape, unsigned char form = 2) {
  std::string message;
  manifest::append_text(message, kVersion);
  message += '\0';                      // not a file for each item
  manifest::append_varint(message, 1);  // items
  message += static_cast<char>(form);   // a box
  message += '\0';                      // a name that shares nothing
  manifest::append_text(message, "key");
  message += static_cast<char>(dtype);
  manifest::append_varint(message, shape.size());
  for (const std::uint64_t size : shape) manifest::append_varint(message, size);
  for (const std::uint64_t number : {0U, 1U}) {  // the offsets, then the sizes
    for (std::size_t i = 0; i < shape.size(); ++i) manifest::append_varint(message, number);
  }
  message += '\0';  // no names taken
  return message;
}

TEST(LocalPlans, RefuseTensorsThatCannotBe) {
  const auto float32 = static_cast<unsigned char>(DType::kFloat32);
  const auto added = [](const std::string& message) { return LocalPlans().add(message); };
  const auto possible = added(message_with(float32, {4, 8}));
  EXPECT_TRUE(possible) << possible.error().what();
  EXPECT_EQ(added(message_with(255, {4, 8})).error().code(), ErrorCode::kCorrupt);
  const std::uint64_t large = std::uint64_t{1} << 40;
  EXPECT_FALSE(added(message_with(float32, {large, large})));
  for (const auto form : std::array<unsigned char, 3>{6, 7, 128 + 2}) {
    EXPECT_EQ(added(message_with(float32, {4, 8}, form)).error().code(), ErrorCode::kCorrupt);
  }
  const auto text_of = [&added](const std::string& message) { return std::string(added(message).error().what()); };
  EXPECT_NE(text_of(message_with(float32, {4, 8}, 6)).find("an unknown form"), std::string::npos);
  const auto complex128 = static_cast<unsigned char>(DType::kComplex128);
  const std::string whole = message_with(complex128, {std::uint64_t{1} << 62}, 0);
  EXPECT_NE(text_of(whole).find("more than 2^64 bytes"), std::string::npos) << text_of(whole);
  const std::string rows_of_a_scalar = message_with(float32, {}, 1) + std::string(2, '\0');
  EXPECT_EQ(added(rows_of_a_scalar).error().code(), ErrorCode::kCorrupt);
}

TEST(LocalPlans, NameTheItemOfAnImpossibleShape) {
  StateDict state;
  const std::int64_t large = std::int64_t{1} << 40;
  ASSERT_TRUE(state.add_serialized(Path{"huge"}, SerializedTensor{"archive", DType::kFloat32, {large, large}}));
  const auto items = checkpointer::SaveItems::make(state);
  ASSERT_TRUE(items);
  const auto message = encode_local_plan(items->sources(), {});
  ASSERT_FALSE(message);
  EXPECT_EQ(message.error().key(), "huge");
}

TEST(LocalPlans, RefuseAnotherVersion) {
  std::string message = message_of(every_form());
  message[1] = '~';
  LocalPlans plans;
  const auto added = plans.add(message);
  ASSERT_FALSE(added);
  EXPECT_EQ(added.error().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(added.error().expected(), kVersion);
  EXPECT_NE(std::string(added.error().what()).find("different versions of Cairn"), std::string::npos);
}

}  // namespace
}  // namespace cairn::save_plan

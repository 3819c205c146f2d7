#include "save_plan/local_plans.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

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
  const SerializedTensor chunk{"rows", DType::kFloat32, {4, 8}, true, rows};
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

TEST(LocalPlans, KeepTheRankFirstPathOfAKeyAndSkipTheRest) {
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
TEST(LocalPlans, TakeAtMostTwentyBytesForARegularShard) {
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

TEST(LocalPlans, RefuseAnotherVersion) {
  std::string message = message_of(every_form());
  message[1] = '~';
  LocalPlans plans;
  EXPECT_EQ(plans.add(message).error().code(), ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace cairn::save_plan

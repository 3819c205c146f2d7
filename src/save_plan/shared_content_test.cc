#include "save_plan/shared_content.h"

#include <cairn/state_dict.h>
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "save/save_items.h"
#include "save_plan/local_plans.h"

namespace cairn::save_plan {
namespace {

using Fill = std::function<void(StateDict&, std::size_t rank)>;

// The comparison of ranks, each with the state that `fill` makes.
Result<SharedContent> comparison_of(std::size_t ranks, const Fill& fill) {
  LocalPlans plans;
  std::vector<std::string> contents;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    StateDict state;
    fill(state, rank);
    const auto items = checkpointer::SaveItems::make(state);
    std::string message = encode_local_plan(items->sources(), {}).value();
    const std::string plan = message;
    append_contents(items->sources(), message);
    contents.push_back(take_contents(message).value());
    EXPECT_EQ(message, plan);
    EXPECT_TRUE(plans.add(message));
  }
  return compare_contents(plans.plans(), contents);
}

std::vector<std::string> different_keys(std::size_t ranks, const Fill& fill) {
  return comparison_of(ranks, fill).value().different.named;
}

using Keys = std::vector<std::string>;

TEST(SharedContent, NamesTheValuesThatDiffer) {
  const auto fill = [](StateDict& state, std::size_t rank) {
    EXPECT_TRUE(state.add_value(Path{"equal"}, Value(7)));
    EXPECT_TRUE(state.add_value(Path{"counter"}, Value(rank == 2 ? 8 : 7)));
    EXPECT_TRUE(state.add_value(Path{"longer"}, Value(std::string(rank == 1 ? 5000 : 5, 'x'))));
    EXPECT_TRUE(state.add_value(Path{"of rank " + std::to_string(rank)}, Value(static_cast<int>(rank))));
  };
  EXPECT_EQ(different_keys(3, fill), (Keys{"counter", "longer"}));
}

TEST(SharedContent, NamesDifferentSmallTensors) {
  static const float kRows[6] = {1, 2, 3, 4, 5, 6};
  static const float kColumns[6] = {1, 4, 2, 5, 3, 6};
  const auto state_with = [](const float* other) {
    return [other](StateDict& state, std::size_t rank) {
      TensorView view = TensorView::contiguous(rank == 0 ? kRows : other, DType::kFloat32, {2, 3});
      if (rank == 1 && other == kColumns) view.strides = Extents{1, 2};
      EXPECT_TRUE(state.add_tensor(Path{"small"}, view));
    };
  };
  static const float kOther[6] = {1, 2, 3, 4, 5, 7};
  EXPECT_EQ(different_keys(2, state_with(kColumns)), Keys{});
  EXPECT_EQ(different_keys(2, state_with(kOther)), Keys{"small"});
}

TEST(SharedContent, ComparesExpandedTensors) {
  static const float kRow[6] = {1, 2, 3, 7, 8, 9};  // the second half is not of the tensor
  static const float kRows[6] = {1, 2, 3, 1, 2, 3};
  const auto fill = [](StateDict& state, std::size_t rank) {
    TensorView view = TensorView::contiguous(rank == 0 ? kRow : kRows, DType::kFloat32, {2, 3});
    if (rank == 0) view.strides = Extents{0, 1};
    EXPECT_TRUE(state.add_tensor(Path{"small"}, view));
  };
  EXPECT_EQ(different_keys(2, fill), Keys{});
}

TEST(SharedContent, ComparesNoShardOrLargeTensor) {
  std::deque<std::vector<float>> memory;
  const auto fill = [&memory](StateDict& state, std::size_t rank) {
    const float* const own = memory.emplace_back(4096, static_cast<float>(rank)).data();
    const auto row = static_cast<std::int64_t>(rank);
    EXPECT_TRUE(state.add_tensor(Path{"large"}, TensorView::contiguous(own, DType::kFloat32, {4096})));
    EXPECT_TRUE(state.add_chunk(Path{"rows"}, TensorView::contiguous(const_cast<float*>(own), DType::kFloat32, {1, 4}),
                                {2, 4}, {row, 0}));
    EXPECT_TRUE(state.add_chunk(Path{"half"}, TensorView::contiguous(const_cast<float*>(own), DType::kFloat32, {1, 4}),
                                {2, 4}, {0, 0}));
  };
  const SharedContent common = comparison_of(2, fill).value();
  EXPECT_EQ(common.different.named, Keys{});
  EXPECT_EQ(common.common, (std::vector<std::vector<CommonItem>>(2)));
}

TEST(SharedContent, WatchesValuesAndSmallTensors) {
  static const std::int64_t kMemory[1024] = {};
  StateDict state;
  EXPECT_TRUE(state.add_value(Path{"value"}, Value(1)));
  EXPECT_TRUE(state.add_tensor(Path{"integers"}, TensorView::contiguous(kMemory, DType::kInt64, {1024})));
  EXPECT_TRUE(state.add_tensor(Path{"few floats"}, TensorView::contiguous(kMemory, DType::kFloat32, {128})));
  EXPECT_TRUE(state.add_tensor(Path{"floats"}, TensorView::contiguous(kMemory, DType::kFloat32, {129})));
  const auto items = checkpointer::SaveItems::make(state);
  std::vector<bool> watched;
  for (const data_file::ItemSource& item : items->sources()) watched.push_back(is_watched(item));
  EXPECT_EQ(watched, (std::vector<bool>{true, true, true, false}));
}

TEST(SharedContent, CountsAllKeysAndNamesEight) {
  const auto fill = [](StateDict& state, std::size_t rank) {
    for (int i = 0; i < 11; ++i) {
      EXPECT_TRUE(state.add_value(Path{std::to_string(i)}, Value(static_cast<int>(rank))));
    }
  };
  const SharedContent common = comparison_of(2, fill).value();
  EXPECT_EQ(common.different.count, 11u);
  EXPECT_EQ(common.different.named.size(), 8u);
}

TEST(SharedContent, ListsItemsOfSeveralRanks) {
  const auto fill = [](StateDict& state, std::size_t rank) {
    if (rank == 1) EXPECT_TRUE(state.add_value(Path{"more"}, Value(1)));
    EXPECT_TRUE(state.add_value(Path{"step"}, Value(1)));
    if (rank != 2) EXPECT_TRUE(state.add_value(Path{"of two"}, Value(1)));
    EXPECT_TRUE(state.add_value(Path{"rate"}, Value(2)));
  };
  const SharedContent shared = comparison_of(3, fill).value();
  EXPECT_EQ(shared.common, (std::vector<std::vector<CommonItem>>{
                               {{0, 0}, {1, 1}, {2, 0}}, {{1, 0}, {2, 1}, {3, 0}}, {{0, 0}, {1, 0}}}));
}

TEST(SharedContent, BoundsTheNumberOfRankSets) {
  const auto fill = [](StateDict& state, std::size_t rank) {
    for (std::size_t first = 0; first < 40; ++first) {
      if (rank == first || rank == 40) EXPECT_TRUE(state.add_value(Path{std::to_string(first)}, Value(1)));
    }
  };
  const SharedContent shared = comparison_of(41, fill).value();
  EXPECT_EQ(shared.common[40].size(), kRankSetsMax - 1);
  EXPECT_EQ(shared.common[0], (std::vector<CommonItem>{{0, 1}}));
  EXPECT_TRUE(shared.common[39].empty());
}

TEST(SharedContent, RefusesDigestsOfNoItems) {
  std::string message = "plan";
  EXPECT_EQ(take_contents(message).error().code(), ErrorCode::kCorrupt);
  message = "pl";  // shorter than the length of the digests
  EXPECT_EQ(take_contents(message).error().code(), ErrorCode::kCorrupt);
  const plan::LocalPlan one(1);
  const std::vector<plan::LocalPlan> plans{one};
  EXPECT_EQ(compare_contents(plans, {}).error().code(), ErrorCode::kInternal);
  for (const std::string& contents : {std::string("\0abcd", 5), std::string("\2abcd"), std::string("\1abc")}) {
    EXPECT_EQ(compare_contents(plans, std::vector{contents}).error().code(), ErrorCode::kCorrupt);
  }
}

}  // namespace
}  // namespace cairn::save_plan

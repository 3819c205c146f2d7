#include "save_plan/disjoint_items.h"

#include <cairn/state_dict.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "save/save_items.h"

namespace cairn::save_plan {
namespace {

float numbers[64];

// The messages of a rank that has `state`.
struct Rank {
  explicit Rank(const StateDict& state, std::uint32_t file_count = 1) {
    const auto items = checkpointer::SaveItems::make(state);
    local_plan = encode_local_plan(items->sources(), {}).value();
    message = encode_digested_plan(items->sources(), file_count, local_plan);
  }
  std::string local_plan;
  std::string message;
};

bool are_disjoint_messages(const std::vector<Rank>& ranks) {
  std::vector<DigestedPlan> plans;
  for (const Rank& rank : ranks) plans.push_back(read_digested_plan(rank.message).value());
  return are_disjoint(plans);
}

// Row `row` of a tensor of four rows.
Rank row_of(std::string key, std::int64_t row) {
  StateDict state;
  EXPECT_TRUE(state.add_chunk(Path{std::move(key)}, TensorView::contiguous(numbers, DType::kFloat32, {1, 8}), {4, 8},
                              {row, 0}));
  return Rank(state);
}

Rank value_of(std::string key, int number) {
  StateDict state;
  EXPECT_TRUE(state.add_value(Path{std::move(key)}, Value(number)));
  return Rank(state);
}

TEST(DisjointItems, DifferInKeyOrOffsets) {
  EXPECT_TRUE(are_disjoint_messages({row_of("a", 0), row_of("a", 1), row_of("b", 1), value_of("c", 1)}));
  EXPECT_FALSE(are_disjoint_messages({row_of("a", 0), row_of("a", 1), row_of("a", 0)}));
  EXPECT_FALSE(are_disjoint_messages({value_of("a", 1), row_of("b", 1), value_of("a", 2)}));
}

// DCP names a chunk by key and offsets: the plan of all ranks leaves the empty chunk out.
TEST(DisjointItems, AreNotAnEmptyChunkAndTheChunkAtItsOffsets) {
  StateDict state;
  EXPECT_TRUE(state.add_chunk(Path{"a"}, TensorView::contiguous(numbers, DType::kFloat32, {0, 8}), {4, 8}, {3, 0}));
  EXPECT_FALSE(are_disjoint_messages({row_of("a", 3), Rank(state)}));
}

TEST(DisjointItems, AreReadBackFromAMessage) {
  const Rank rank = row_of("a", 1);
  const auto plan = read_digested_plan(rank.message);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->local_plan, rank.local_plan);
  EXPECT_EQ(plan->file_count, 1U);
  EXPECT_EQ(plan->digests.size(), kDigestBytes);
}

TEST(DisjointItems, OfAMessageThatIsCutInItsDigestsAreRefused) {
  const Rank rank = row_of("a", 1);
  for (std::size_t size = 0; size < 2 + kDigestBytes; ++size) {
    EXPECT_EQ(read_digested_plan(std::string_view(rank.message).substr(0, size)).error().code(), ErrorCode::kCorrupt);
  }
}

TEST(DisjointItems, HaveALayoutOfAllItemsOfEachRank) {
  const auto layout = lay_out_disjoint(
      {row_of("a", 0).local_plan, row_of("a", 1).local_plan, row_of("a", 2).local_plan, row_of("a", 3).local_plan}, {});
  ASSERT_TRUE(layout) << layout.error().what();
  ASSERT_EQ(layout->ranks.size(), 4U);
  for (const RankLayout& rank : layout->ranks) EXPECT_EQ(rank.items.size(), 1U);
  EXPECT_EQ(layout->catalog.files.size(), 4U);
}

TEST(DisjointItems, ThatLeaveARowOutHaveNoLayout) {
  const auto layout = lay_out_disjoint({row_of("a", 0).local_plan, row_of("a", 2).local_plan}, {});
  ASSERT_FALSE(layout);
  EXPECT_EQ(layout.error().code(), ErrorCode::kInvalidArgument);
}

TEST(DisjointItems, OfRanksWithACommonItemHaveNoLayout) {
  const auto layout = lay_out_disjoint({value_of("a", 1).local_plan, value_of("a", 2).local_plan}, {});
  ASSERT_FALSE(layout);
  EXPECT_EQ(layout.error().code(), ErrorCode::kInternal);
}

}  // namespace
}  // namespace cairn::save_plan

#include "save_plan/shared_items.h"

#include <cairn/state_dict.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "save/save_items.h"

namespace cairn::save_plan {
namespace {

using Count = CommonItems::Count;

// Of all tensors: no test reads an element.
float numbers[std::size_t{1} << 21];

// The messages of a rank that has `state`, which outlives the Rank.
struct Rank {
  explicit Rank(const StateDict& state) : items(checkpointer::SaveItems::make(state).value()) {
    local_plan = encode_local_plan(items.sources(), {}).value();
    message = encode_digested_plan(items.sources(), false, local_plan);
  }
  checkpointer::SaveItems items;
  std::string local_plan;
  std::string message;
};

CommonItems common_of(std::span<const Rank> ranks) {
  std::vector<DigestedPlan> plans;
  for (const Rank& rank : ranks) plans.push_back(read_digested_plan(rank.message).value());
  return find_common_items(plans);
}

void add_row(StateDict& state, std::string key, std::int64_t row, std::int64_t rows = 1) {
  const auto view = TensorView::contiguous(numbers, DType::kFloat32, {rows, 8});
  EXPECT_TRUE(state.add_chunk(Path{std::move(key)}, view, {4, 8}, {row, 0}));
}

void add_value(StateDict& state, std::string key, int number) {
  EXPECT_TRUE(state.add_value(Path{std::move(key)}, Value(number)));
}

// A state with `count` values of rank `rank` alone.
StateDict own_values(std::size_t rank, int count) {
  StateDict state;
  for (int i = 0; i < count; ++i) add_value(state, "own " + std::to_string(rank) + "." + std::to_string(i), i);
  return state;
}

std::vector<Rank> ranks_of(const std::vector<StateDict>& states) {
  std::vector<Rank> ranks;
  for (const StateDict& state : states) ranks.emplace_back(state);
  return ranks;
}

TEST(CommonItems, SameKeyAndSameOffset) {
  std::vector<StateDict> states(3);
  add_row(states[0], "a", 0);
  add_row(states[1], "a", 1);
  add_row(states[2], "b", 1);
  add_value(states[2], "c", 1);
  EXPECT_EQ(common_of(ranks_of(states)).count, Count::kNone);
}

TEST(CommonItems, CountAsManyAboveAnEighth) {
  for (const int own : {6, 7}) {
    std::vector<StateDict> states;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      states.push_back(own_values(rank, own));
      add_value(states.back(), "common", static_cast<int>(rank));
    }
    const CommonItems common = common_of(ranks_of(states));
    EXPECT_EQ(common.count, own == 6 ? Count::kMany : Count::kFew);
    if (own == 7) {
      EXPECT_EQ(common.ranks, (std::vector<std::vector<std::uint32_t>>{{7}, {7}}));
    }
  }
}

TEST(CommonItems, CountAsManyInASample) {
  std::vector<StateDict> states(2);
  for (int i = 0; i < 140'000; ++i) {
    for (StateDict& state : states) add_value(state, std::to_string(i), 0);
  }
  EXPECT_EQ(common_of(ranks_of(states)).count, Count::kMany);
}

// DCP names a chunk by key and offsets: a plan of all ranks leaves the empty chunk out.
TEST(CommonItems, EmptyChunkAtTheSameOffsets) {
  std::vector<StateDict> states;
  for (std::size_t rank = 0; rank < 2; ++rank) states.push_back(own_values(rank, 10));
  add_row(states[0], "a", 3);
  add_row(states[1], "a", 3, 0);
  EXPECT_EQ(common_of(ranks_of(states)).ranks, (std::vector<std::vector<std::uint32_t>>{{10}, {10}}));
}

TEST(CommonItems, ArchivesOfEqualOffsets) {
  std::vector<StateDict> states;
  for (std::size_t rank = 0; rank < 3; ++rank) states.push_back(own_values(rank, 10));
  const SerializedTensor whole{"whole", DType::kFloat32, {2, 8}};
  EXPECT_TRUE(states[0].add_serialized(Path{"archive"}, whole));
  const SerializedTensor rows{"rows", DType::kFloat32, {2, 8}, false, Box::make({0, 0}, {1, 8}).value()};
  EXPECT_TRUE(states[1].add_serialized(Path{"archive"}, rows));
  const SerializedTensor others{"others", DType::kFloat32, {2, 8}, false, Box::make({1, 0}, {1, 8}).value()};
  EXPECT_TRUE(states[2].add_serialized(Path{"archive"}, others));
  EXPECT_EQ(common_of(ranks_of(states)).ranks, (std::vector<std::vector<std::uint32_t>>{{10}, {10}, {}}));
}

TEST(DigestedPlan, ReadBackUnlessCutOff) {
  StateDict state;
  add_row(state, "a", 1);
  const Rank rank(state);
  const auto plan = read_digested_plan(rank.message);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->local_plan, rank.local_plan);
  EXPECT_EQ(plan->item_count(), 1U);
  for (std::size_t size = 0; size < 2 + kDigestBytes; ++size) {
    EXPECT_EQ(read_digested_plan(std::string_view(rank.message).substr(0, size)).error().code(), ErrorCode::kCorrupt);
  }
  std::string damaged = rank.message;
  damaged[0] = 2;
  const auto read = read_digested_plan(damaged);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), ErrorCode::kCorrupt);
  EXPECT_NE(std::string(read.error().what()).find("neither one file nor"), std::string::npos) << read.error().what();
}

TEST(CommonItems, RequestedByTheirIndex) {
  const std::vector<std::uint32_t> indices{0, 1, 7, 300, 301};
  EXPECT_EQ(decode_indices(encode_indices(indices), 302).value(), indices);
  EXPECT_EQ(decode_indices(encode_indices(indices), 301).error().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(decode_indices(encode_indices({}), 0).value(), std::vector<std::uint32_t>());
}

TEST(CommonShare, AddsTheOwnItems) {
  const auto indices_of = [](const CommonShare& share) {
    std::vector<std::uint32_t> indices;
    for (const AssignedItem& item : with_own_items(share, 5).value()) indices.push_back(item.index);
    return indices;
  };
  EXPECT_EQ(indices_of({}), (std::vector<std::uint32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(indices_of({{1, 4}, {}}), (std::vector<std::uint32_t>{0, 2, 3}));
  EXPECT_EQ(indices_of({{1, 4}, {{4, nullptr}}}), (std::vector<std::uint32_t>{0, 2, 3, 4}));
  for (const CommonShare& wrong : {CommonShare{{5}, {}}, CommonShare{{1}, {{2, nullptr}}}, CommonShare{{}, {{0, {}}}},
                                   CommonShare{{1, 2}, {{2, {}}, {1, {}}}}}) {
    EXPECT_EQ(with_own_items(wrong, 5).error().code(), ErrorCode::kCorrupt);
  }
}

TEST(CommonShare, ReadBackWithItsParts) {
  const Box part = Box::make({2, 0}, {1, 8}).value();
  const CommonShare share{{1, 4}, {{1, nullptr}, {4, std::make_shared<const Box>(part)}}};
  std::string message;
  append_common_share(message, share);
  manifest::CodedReader reader(message);
  const auto read = read_common_share(reader);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->common, share.common);
  ASSERT_EQ(read->written.size(), 2U);
  EXPECT_EQ(read->written[0].part, nullptr);
  EXPECT_EQ(*read->written[1].part, part);
}

TEST(AssignedItems, PartsOfUpToTheMostDimensions) {
  for (const std::size_t dimensions : {std::size_t{0}, kDimensionsMax}) {
    const Box part = Box::make(Extents(dimensions, 3), Extents(dimensions, 1)).value();
    std::string message;
    append_assigned_items(message, std::vector<AssignedItem>{{7, std::make_shared<const Box>(part)}});
    manifest::CodedReader reader(message);
    const auto read = read_assigned_items(reader);
    ASSERT_TRUE(read && read->size() == 1 && read->front().part) << dimensions;
    EXPECT_EQ(*read->front().part, part);
  }
}

// The plans of the ranks, with shares as the ranks of a save find them.
SharedPlans shared_plans_of(const std::vector<Rank>& ranks) {
  const CommonItems found = common_of(ranks);
  SharedPlans plans;
  for (const Rank& rank : ranks) plans.local_plans.push_back(rank.local_plan);
  if (found.count == Count::kNone) return plans;
  EXPECT_EQ(found.count, Count::kFew);
  std::vector<CommonPlan> common;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    std::vector<data_file::ItemSource> items;
    for (const std::uint32_t index : found.ranks[rank]) items.push_back(ranks[rank].items.sources()[index]);
    const std::string message = encode_common_plan(own_items(ranks[rank].items.sources(), found.ranks[rank]),
                                                   encode_local_plan(items, {}).value());
    common.push_back(decode_common_plan(message).value());
  }
  const PlannedSave planned = plan_common(std::move(common), false).value();
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    CommonShare& share = plans.shares.emplace_back();
    share.common = found.ranks[rank];
    for (const plan::WriteItem& write : planned.global.ranks[rank]) {
      const bool is_part = write.cut != plan::WriteItem::kWhole;
      share.written.push_back(
          {share.common[write.item], is_part ? std::make_shared<const Box>(planned.global.cuts[write.cut]) : nullptr});
    }
  }
  return plans;
}

// What each rank writes, where, as text.
std::vector<std::string> layout_of(const JointLayout& layout) {
  std::vector<std::string> lines;
  for (const CatalogTensor& tensor : layout.catalog.tensors) {
    for (std::size_t i = 0; i < tensor.chunk_count(); ++i) {
      lines.push_back(tensor.fqn + " " + to_string(tensor.chunk(i)) + " in " +
                      std::to_string(tensor.locations[i].file) + " at " + std::to_string(tensor.locations[i].offset));
    }
  }
  for (const CatalogValue& value : layout.catalog.values) {
    lines.push_back(value.fqn + " in " + std::to_string(value.location.file) + " at " +
                    std::to_string(value.location.offset));
  }
  return lines;
}

// The layout of a plan of all items.
JointLayout joint_layout_of(const std::vector<Rank>& ranks) {
  std::vector<std::string> local_plans;
  for (const Rank& rank : ranks) local_plans.push_back(rank.local_plan);
  return lay_out_together(plan_together(std::move(local_plans), false).value(), {}).value();
}

void expect_equal_layouts(const std::vector<StateDict>& states) {
  const std::vector<Rank> ranks = ranks_of(states);
  const auto shared = lay_out_shared(shared_plans_of(ranks), {});
  ASSERT_TRUE(shared) << shared.error().what();
  EXPECT_EQ(layout_of(*shared), layout_of(joint_layout_of(ranks)));
}

TEST(SharedPlans, LayoutEqualsThatOfAWholePlan) {
  std::vector<StateDict> states;
  for (std::size_t rank = 0; rank < 4; ++rank) {
    states.push_back(own_values(rank, 5));
    add_row(states.back(), "rows", static_cast<std::int64_t>(rank));
  }
  expect_equal_layouts(states);
  for (StateDict& state : states) add_value(state, "own " + std::to_string(&state - states.data()) + " last", 1);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    for (int i = 0; i < 30; ++i) add_value(states[rank], std::to_string(rank) + " and " + std::to_string(i), i);
    add_value(states[rank], "step", 7);
    if (rank % 2 == 1) add_value(states[rank], "of two", 7);
  }
  expect_equal_layouts(states);
}

// Replicas of several families, values, and empty shards, among many items of the ranks' own, in a random order.
TEST(SharedPlans, LayoutEqualsForRandomStates) {
  std::mt19937 chance(7);
  const auto below = [&](unsigned limit) { return static_cast<unsigned>(chance() % limit); };
  for (int round = 0; round < 40; ++round) {
    std::vector<StateDict> states(4);
    const unsigned common_count = 1 + below(4);
    for (std::size_t rank = 0; rank < 4; ++rank) {
      for (unsigned i = 0; i < 60 + below(20); ++i) {
        const auto size = static_cast<std::int64_t>(1 + below(400'000));
        EXPECT_TRUE(states[rank].add_tensor(Path{"own", std::to_string(rank) + "." + std::to_string(i)},
                                            TensorView::contiguous(numbers, DType::kFloat32, {size})));
      }
    }
    for (unsigned i = 0; i < common_count; ++i) {
      const std::string key = "common " + std::to_string(i);
      const auto rows = static_cast<std::int64_t>(1 + below(500));
      const unsigned kind = below(3);
      const unsigned holders = 1 + below(15);
      for (std::size_t rank = 0; rank < 4; ++rank) {
        if ((holders >> rank & 1) == 0) continue;
        if (kind == 0) add_value(states[rank], key, static_cast<int>(rank));
        TensorTraits traits;
        traits.replicated = kind == 1;
        const auto view = TensorView::contiguous(numbers, DType::kFloat32, {rows, 2048});
        if (kind != 0) {
          EXPECT_TRUE(states[rank].add_chunk(Path{key}, view, {rows, 2048}, {0, 0}, traits));
        }
      }
    }
    for (std::size_t rank = 0; rank < 4; ++rank) {  // more ranks than rows
      const std::int64_t row = std::min<std::int64_t>(static_cast<std::int64_t>(rank), 2);
      const auto view = TensorView::contiguous(numbers, DType::kFloat32, {rank < 2 ? 1 : 0, 8});
      EXPECT_TRUE(states[rank].add_chunk(Path{"short"}, view, {2, 8}, {row, 0}));
    }
    expect_equal_layouts(states);
  }
}

TEST(SharedPlans, MissingRowHasNoLayout) {
  std::vector<StateDict> states(2);
  add_row(states[0], "a", 0);
  add_row(states[1], "a", 2);
  const auto layout = lay_out_shared(shared_plans_of(ranks_of(states)), {});
  ASSERT_FALSE(layout);
  EXPECT_EQ(layout.error().code(), ErrorCode::kInvalidArgument);
}

TEST(SharedPlans, EachItemIsWrittenExactlyOnce) {
  std::vector<StateDict> states(2);
  for (StateDict& state : states) add_value(state, "a", 1);
  const std::vector<Rank> ranks = ranks_of(states);
  const auto laid_out = [&](std::vector<CommonShare> shares) {
    return lay_out_shared({{ranks[0].local_plan, ranks[1].local_plan}, std::move(shares)}, {});
  };
  EXPECT_TRUE(laid_out({{{0}, {{0, nullptr}}}, {{0}, {}}}));
  EXPECT_EQ(laid_out({{{0}, {{0, nullptr}}}, {{0}, {{0, nullptr}}}}).error().code(), ErrorCode::kInternal);
  EXPECT_EQ(laid_out({{{0}, {}}, {{0}, {}}}).error().code(), ErrorCode::kInternal);
  EXPECT_EQ(laid_out({}).error().code(), ErrorCode::kInternal);
}

}  // namespace
}  // namespace cairn::save_plan

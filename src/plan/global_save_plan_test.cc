#include "plan/global_save_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <random>
#include <string>
#include <unordered_map>

#include "core/byte_units.h"
#include "plan/testing/random_tiling.h"

namespace cairn::plan {
namespace {

// The local plans of a job. An element of a tensor takes one MiB, unless a test sets the bytes.
struct Job {
  explicit Job(std::size_t rank_count) : plans(rank_count) {}

  LocalItem& add(std::size_t rank, const std::string& fqn, const Extents& shape, const Box& chunk) {
    LocalItem item;
    item.fqn = names.emplace_back(fqn);  // each rank has separate memory for its names
    item.shape = shape;
    item.box = chunk;
    item.bytes = static_cast<std::uint64_t>(chunk.element_count()) * kMiB;
    return plans[rank].emplace_back(std::move(item));
  }
  LocalItem& add(std::size_t rank, const std::string& fqn, const Extents& shape) {
    return add(rank, fqn, shape, Box::whole(shape).value());
  }
  LocalItem& add_value(std::size_t rank, const std::string& fqn, std::uint64_t bytes) {
    LocalItem& item = add(rank, fqn, {});
    item.kind = LocalItem::Kind::kValue;
    item.bytes = bytes;
    return item;
  }
  // Adds the replicated item on all of `ranks`.
  void replicate(const std::vector<std::size_t>& ranks, const std::string& fqn, const Extents& shape,
                 const Box& chunk) {
    for (const std::size_t rank : ranks) add(rank, fqn, shape, chunk).replicated = true;
  }
  void replicate(const std::string& fqn, const Extents& shape) {
    for (std::size_t rank = 0; rank < plans.size(); ++rank) add(rank, fqn, shape).replicated = true;
  }

  GlobalSavePlan plan(const SavePlanOptions& options = {}) const { return plan_save(plans, options).value(); }

  std::deque<std::string> names;
  std::vector<LocalPlan> plans;
};

std::uint64_t bytes_of(const GlobalSavePlan& plan, const WriteItem& write, const LocalItem& item) {
  if (write.cut == WriteItem::kWhole) return item.bytes;
  return item.bytes / static_cast<std::uint64_t>(item.box.element_count()) *
         static_cast<std::uint64_t>(plan.box_of(write, item).element_count());
}

std::vector<std::uint64_t> loads_of(const Job& job, const GlobalSavePlan& plan) {
  std::vector<std::uint64_t> loads;
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    std::uint64_t& load = loads.emplace_back(0);
    for (const WriteItem& write : plan.ranks[rank]) load += bytes_of(plan, write, job.plans[rank][write.item]);
  }
  return loads;
}

double mean_of(const std::vector<std::uint64_t>& loads) {
  double sum = 0;
  for (const std::uint64_t load : loads) sum += static_cast<double>(load);
  return sum / static_cast<double>(loads.size());
}

// Each load is within a tenth of the mean.
void expect_even(const std::vector<std::uint64_t>& loads) {
  const double mean = mean_of(loads);
  for (const std::uint64_t load : loads) {
    EXPECT_NEAR(static_cast<double>(load), mean, mean / 10) << testing::PrintToString(loads);
  }
}

// How often each element of each key occurs; an item that is not a tensor counts as one element.
using Counts = std::unordered_map<std::string_view, std::vector<int>>;

void count(const LocalItem& item, const Box& chunk, Counts& counts) {
  std::vector<int>& elements = counts[item.fqn];
  if (item.kind != LocalItem::Kind::kTensor) {
    elements.resize(1);
    ++elements[0];
    return;
  }
  elements.resize(static_cast<std::size_t>(element_count(item.shape).value()));
  const Extents strides = row_major_strides(item.shape);
  const Extents inner = row_major_strides(chunk.sizes());
  for (std::int64_t i = 0; i < chunk.element_count(); ++i) {
    std::int64_t element = 0;
    for (std::size_t d = 0; d < chunk.dimensions(); ++d) {
      element += (chunk.offsets()[d] + i / inner[d] % chunk.sizes()[d]) * strides[d];
    }
    ++elements[static_cast<std::size_t>(element)];
  }
}

// Each element of each key that a rank has is written once, by a rank that has the element.
void expect_all_written_once(const Job& job, const GlobalSavePlan& plan) {
  Counts held;
  for (const LocalPlan& local : job.plans) {
    for (const LocalItem& item : local) count(item, item.box, held);
  }
  Counts written;
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    for (const WriteItem& write : plan.ranks[rank]) {
      const LocalItem& item = job.plans[rank].at(write.item);
      const Box& chunk = plan.box_of(write, item);
      if (item.kind == LocalItem::Kind::kTensor && chunk.element_count() > 0) {
        ASSERT_EQ(intersection(chunk, item.box), chunk) << item.fqn;
      }
      count(item, chunk, written);
    }
  }
  ASSERT_EQ(written.size(), held.size());
  for (auto& [fqn, elements] : held) {
    for (int& element : elements) element = std::min(element, 1);
    ASSERT_EQ(written[fqn], elements) << fqn;
  }
}

std::vector<std::size_t> all_ranks(std::size_t count) {
  std::vector<std::size_t> ranks(count);
  for (std::size_t rank = 0; rank < count; ++rank) ranks[rank] = rank;
  return ranks;
}

// Adds a random key: sharded, replicated, both, plain duplicates, or a value.
void add_random_key(Job& job, const std::string& fqn, std::mt19937& random) {
  std::vector<std::size_t> ranks = all_ranks(job.plans.size());
  std::shuffle(ranks.begin(), ranks.end(), random);
  const Extents shape = random_shape(random() % 4, 5, random);
  const std::size_t some = 1 + random() % ranks.size();
  const std::vector<std::size_t> few(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(some));
  const auto kind = random() % 5;
  if (kind == 0) {
    for (const std::size_t rank : few) job.add_value(rank, fqn, random() % 1000);
  } else if (kind == 1) {
    for (const std::size_t rank : few) job.add(rank, fqn, shape).kind = LocalItem::Kind::kSerializedTensor;
  } else if (kind == 2) {
    for (const std::size_t rank : few) job.add(rank, fqn, shape).replicated = random() % 20 != 0;
  } else {
    std::vector<Box> chunks;
    shatter(Box::whole(shape).value(), 4, random, chunks);
    for (const Box& chunk : chunks) {
      std::shuffle(ranks.begin(), ranks.end(), random);
      const std::size_t count = kind == 3 ? 1 : 1 + random() % ranks.size();
      for (std::size_t i = 0; i < count; ++i) job.add(ranks[i], fqn, shape, chunk).replicated = kind == 4;
    }
  }
}

TEST(GlobalSavePlan, WritesEachOfManyElementsOnce) {
  std::mt19937 random(17);
  Job job(16);
  for (std::size_t key = 0; job.names.size() < 100000; ++key) {
    add_random_key(job, "key." + std::to_string(key), random);
  }
  for (LocalPlan& plan : job.plans) std::shuffle(plan.begin(), plan.end(), random);
  for (const bool to_lowest_rank : {false, true}) {
    const GlobalSavePlan plan = job.plan({to_lowest_rank, Coverage::kWhole});
    expect_all_written_once(job, plan);
    for (const auto& writes : plan.ranks) {
      EXPECT_TRUE(std::ranges::is_sorted(writes, std::ranges::less_equal(), &WriteItem::item));
    }
    if (!to_lowest_rank) expect_even(loads_of(job, plan));
  }
}

TEST(GlobalSavePlan, WritesFewItemsOnceForAnySizes) {
  std::mt19937 random(18);
  std::size_t cuts = 0;
  for (int round = 0; round < 1000; ++round) {
    SCOPED_TRACE(testing::Message() << "round=" << round);
    Job job(1 + random() % 6);
    for (int key = 0; key < 1 + round % 5; ++key) add_random_key(job, "key." + std::to_string(key), random);
    const GlobalSavePlan plan = job.plan();
    expect_all_written_once(job, plan);
    cuts += plan.cuts.size();
  }
  EXPECT_GT(cuts, 300U);
}

TEST(GlobalSavePlan, OneRankHasAllItemsInOrder) {
  Job job(1);
  job.add(0, "b", {4}).replicated = true;
  job.add_value(0, "c", 10);
  job.add(0, "a", {8}, box({4}, {4}));
  job.add(0, "a", {8}, box({0}, {4}));
  const GlobalSavePlan plan = job.plan();
  EXPECT_EQ(plan.ranks, (std::vector<std::vector<WriteItem>>{{{0}, {1}, {2}, {3}}}));
  EXPECT_TRUE(plan.cuts.empty());
}

TEST(GlobalSavePlan, EmptyWithoutAnyItems) {
  EXPECT_TRUE(plan_save({}).value().ranks.empty());
  EXPECT_EQ(Job(3).plan().ranks, std::vector<std::vector<WriteItem>>(3));
}

TEST(GlobalSavePlan, ARankWithoutItemsWritesNothing) {
  Job job(3);
  job.replicate({0, 2}, "w", {64}, box({0}, {64}));
  const GlobalSavePlan plan = job.plan();
  EXPECT_TRUE(plan.ranks[1].empty());
  EXPECT_EQ(loads_of(job, plan), (std::vector<std::uint64_t>{32 * kMiB, 0, 32 * kMiB}));
}

TEST(GlobalSavePlan, DependsOnDeclarationsAlone) {
  const auto plan_of = [] {
    std::mt19937 random(23);
    Job job(8);
    for (int key = 0; key < 300; ++key) add_random_key(job, "key." + std::to_string(key), random);
    return job.plan();
  };
  const GlobalSavePlan first = plan_of();
  const std::string in_the_way(5000, ' ');  // moves the names to different addresses
  const GlobalSavePlan second = plan_of();
  EXPECT_EQ(first.ranks, second.ranks);
  EXPECT_EQ(first.cuts, second.cuts);
}

// --- balance

// A transformer: an embedding larger than a rank's fair share, and layers. In MiB.
void add_model(const std::function<void(const std::string&, const Extents&)>& add) {
  add("embedding", {4000, 1});
  for (int layer = 0; layer < 24; ++layer) {
    const std::string name = "layers." + std::to_string(layer);
    for (const char* weight : {".q", ".k", ".v", ".o"}) add(name + weight, {16, 1});
    for (const char* weight : {".up", ".gate", ".down"}) add(name + weight, {44, 1});
    add(name + ".norm", {1, 1});
  }
}

TEST(GlobalSavePlan, SpreadsReplicasEvenly) {
  for (const std::size_t rank_count : {2U, 3U, 8U, 64U, 100U}) {
    SCOPED_TRACE(rank_count);
    Job job(rank_count);
    add_model([&](const std::string& fqn, const Extents& shape) { job.replicate(fqn, shape); });
    const GlobalSavePlan plan = job.plan();
    expect_all_written_once(job, plan);
    expect_even(loads_of(job, plan));
    EXPECT_LE(plan.cuts.size(), 3 * rank_count);
  }
}

// Plain tensors cannot be cut: the embedding is the whole load of one rank, and the remaining ranks share the rest.
TEST(GlobalSavePlan, SpreadsPlainTensorsUncut) {
  constexpr std::size_t kRanks = 8;
  Job job(kRanks);
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    add_model([&](const std::string& fqn, const Extents& shape) { job.add(rank, fqn, shape); });
  }
  const GlobalSavePlan plan = job.plan();
  expect_all_written_once(job, plan);
  EXPECT_TRUE(plan.cuts.empty());
  std::vector<std::uint64_t> loads = loads_of(job, plan);
  EXPECT_EQ(loads[0], 4000 * kMiB);
  loads.erase(loads.begin());
  expect_even(loads);
}

// Shards over the ranks of a row, replicated down the columns; each rank also has a shard of its own.
TEST(GlobalSavePlan, SpreadsShardsWithReplicas) {
  constexpr std::size_t kRows = 4;
  constexpr std::size_t kColumns = 8;
  Job job(kRows * kColumns);
  for (std::size_t rank = 0; rank < kRows * kColumns; ++rank) {
    const auto column = static_cast<std::int64_t>(rank % kColumns);
    add_model([&](const std::string& fqn, const Extents& model_shape) {
      const Extents shape{model_shape[0], kColumns};
      job.add(rank, fqn, shape, box({0, column}, {model_shape[0], 1})).replicated = true;
    });
    const auto own = static_cast<std::int64_t>(rank);
    job.add(rank, "experts", {kRows * kColumns, 50}, box({own, 0}, {1, 50}));
  }
  const GlobalSavePlan plan = job.plan();
  expect_all_written_once(job, plan);
  expect_even(loads_of(job, plan));
}

// A rank with more bytes of its own takes fewer of the shared bytes.
TEST(GlobalSavePlan, BalancesTheItemsOfSingleRanks) {
  std::mt19937 random(29);
  for (int round = 0; round < 50; ++round) {
    SCOPED_TRACE(testing::Message() << "round=" << round);
    const std::size_t rank_count = 2 + random() % 12;
    Job job(rank_count);
    for (std::size_t rank = 0; rank < rank_count; ++rank) {
      job.add(rank, "own." + std::to_string(rank), {static_cast<std::int64_t>(random() % 100)});
    }
    for (std::size_t key = 0; key < 1 + random() % 20; ++key) {
      const auto rows = static_cast<std::int64_t>(100 * rank_count + random() % 2000);
      job.replicate("shared." + std::to_string(key), {rows, 3});
    }
    const GlobalSavePlan plan = job.plan();
    expect_all_written_once(job, plan);
    expect_even(loads_of(job, plan));
  }
}

// Items of few ranks are placed first; items of all ranks then even out the loads.
TEST(GlobalSavePlan, PlacesItemsOfFewRanksFirst) {
  Job job(4);
  job.replicate("all", {400});
  job.replicate({0, 1}, "few", {200}, box({0}, {200}));
  EXPECT_EQ(loads_of(job, job.plan()), std::vector<std::uint64_t>(4, 150 * kMiB));
}

TEST(GlobalSavePlan, LeavesBalancedItemsUncut) {
  Job job(4);
  for (int key = 0; key < 8; ++key) job.replicate("w." + std::to_string(key), {100, 1});
  const GlobalSavePlan plan = job.plan();
  EXPECT_TRUE(plan.cuts.empty());
  EXPECT_EQ(loads_of(job, plan), std::vector<std::uint64_t>(4, 200 * kMiB));
}

// Two ranks share little, and the third writes much: a cut would not make the save faster.
TEST(GlobalSavePlan, CutsNothingBesideAFullerRank) {
  Job job(3);
  job.replicate({0, 1}, "w", {100}, box({0}, {100}));
  job.add(2, "own", {1000});
  EXPECT_TRUE(job.plan().cuts.empty());
}

// --- cuts

TEST(GlobalSavePlan, CutsTheOutermostLongDimension) {
  const auto boxes_of = [](const Extents& shape) {
    Job job(4);
    job.replicate("w", shape);
    return job.plan().cuts;
  };
  EXPECT_EQ(boxes_of({400, 3}), (std::vector<Box>{box({0, 0}, {100, 3}), box({100, 0}, {100, 3}),
                                                  box({200, 0}, {100, 3}), box({300, 0}, {100, 3})}));
  EXPECT_EQ(boxes_of({4, 100}), (std::vector<Box>{box({0, 0}, {1, 100}), box({1, 0}, {1, 100}), box({2, 0}, {1, 100}),
                                                  box({3, 0}, {1, 100})}));
  EXPECT_EQ(boxes_of({1, 400}), (std::vector<Box>{box({0, 0}, {1, 100}), box({0, 100}, {1, 100}),
                                                  box({0, 200}, {1, 100}), box({0, 300}, {1, 100})}));
  EXPECT_EQ(boxes_of({3, 400}), (std::vector<Box>{box({0, 0}, {3, 100}), box({0, 100}, {3, 100}),
                                                  box({0, 200}, {3, 100}), box({0, 300}, {3, 100})}));
}

TEST(GlobalSavePlan, CutsAChunkInItsPlace) {
  Job job(3);
  job.replicate({0, 1}, "w", {300, 2}, box({100, 0}, {200, 2}));
  job.replicate({2}, "w", {300, 2}, box({0, 0}, {100, 2}));
  EXPECT_EQ(job.plan().cuts, (std::vector<Box>{box({100, 0}, {100, 2}), box({200, 0}, {100, 2})}));
}

TEST(GlobalSavePlan, MakesNoPartBelowAMebibyte) {
  constexpr std::size_t kRanks = 64;
  Job job(kRanks);
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    LocalItem& item = job.add(rank, "w", {10240});
    item.replicated = true;
    item.bytes = 10 * kMiB;
  }
  const GlobalSavePlan plan = job.plan();
  EXPECT_EQ(plan.cuts.size(), 10U);
  for (const Box& part : plan.cuts) EXPECT_EQ(part.sizes()[0], 1024);
  expect_all_written_once(job, plan);
}

TEST(GlobalSavePlan, CutsOnlyItemsAllRanksDeclare) {
  for (const bool first_declares : {false, true}) {
    Job job(2);
    job.add(0, "w", {100}).replicated = first_declares;
    job.add(1, "w", {100}).replicated = !first_declares;
    EXPECT_TRUE(job.plan().cuts.empty());
  }
}

TEST(GlobalSavePlan, LowestRankWritesWithoutCuts) {
  Job job(3);
  job.replicate("w", {100});
  job.add_value(1, "v", 10);
  job.add_value(2, "v", 10);
  job.add(2, "own", {4});
  const GlobalSavePlan plan = job.plan({true, Coverage::kWhole});
  EXPECT_EQ(plan.ranks, (std::vector<std::vector<WriteItem>>{{{0}}, {{1}}, {{2}}}));
  EXPECT_TRUE(plan.cuts.empty());
}

TEST(GlobalSavePlan, EmptyChunkTakesNoOthersName) {
  Job job(3);
  job.add(0, "w", {4}, box({0}, {0}));
  job.add(1, "w", {4}, box({0}, {4}));
  job.add(2, "w", {4}, box({4}, {0}));
  const GlobalSavePlan plan = job.plan();
  EXPECT_EQ(plan.ranks, (std::vector<std::vector<WriteItem>>{{}, {{0}}, {{0}}}));
}

// --- errors

Error error_of(const Job& job, const SavePlanOptions& options = {}) {
  const auto plan = plan_save(job.plans, options);
  EXPECT_FALSE(plan);
  return plan ? Error(ErrorCode::kInternal, "none") : plan.error();
}

TEST(GlobalSavePlan, NamesKeyAndRanksThatDisagree) {
  const auto disagreement = [](const std::function<void(LocalItem&)>& change) {
    Job job(4);
    job.add(1, "w", {2, 3}).replicated = true;
    change(job.add(3, "w", {2, 3}));
    return error_of(job);
  };
  const Error dtype = disagreement([](LocalItem& item) { item.dtype = DType::kBFloat16; });
  EXPECT_EQ(dtype.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(dtype.key(), "w");
  EXPECT_EQ(dtype.rank(), 3);
  EXPECT_EQ(dtype.expected(), "a tensor, float32 [2, 3], as on rank 1");
  EXPECT_EQ(dtype.actual(), "a tensor, bfloat16 [2, 3]");
  EXPECT_EQ(disagreement([](LocalItem& item) { item.shape = {2, 4}; }).actual(), "a tensor, float32 [2, 4]");
  EXPECT_EQ(disagreement([](LocalItem& item) { item.kind = LocalItem::Kind::kValue; }).actual(), "a value");
}

TEST(GlobalSavePlan, MixesArchivedAndPlainChunks) {
  Job job(3);
  LocalItem& archived = job.add(0, "w", {8}, box({0}, {4}));
  archived.kind = LocalItem::Kind::kSerializedTensor;
  archived.replicated = true;
  job.add(1, "w", {8}, box({4}, {4})).replicated = true;
  job.add(2, "w", {8}, box({4}, {4})).replicated = true;
  const GlobalSavePlan plan = plan_save(job.plans).value();
  EXPECT_EQ(plan.ranks[0].size(), 1U);
  EXPECT_EQ(plan.ranks[1].size() + plan.ranks[2].size(), 1U);
  EXPECT_TRUE(plan.cuts.empty());
  job.add(0, "v", {8}, box({0}, {4})).kind = LocalItem::Kind::kSerializedTensor;
  EXPECT_EQ(error_of(job).key(), "v");  // the other half is missing
}

TEST(GlobalSavePlan, RanksMayDisagreeOnGradients) {
  Job job(2);
  job.add(0, "w", {4}, box({0}, {2})).requires_grad = true;
  job.add(1, "w", {4}, box({2}, {2}));
  EXPECT_TRUE(plan_save(job.plans));
}

TEST(GlobalSavePlan, RefusesAnItemListedTwice) {
  Job job(3);
  job.add(1, "w", {4});
  job.add(2, "w", {4});
  job.add(2, "w", {4});
  const Error error = error_of(job);
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error.key(), "w");
  EXPECT_EQ(error.rank(), 2);
}

TEST(GlobalSavePlan, RefusesOverlapsAndHoles) {
  Job job(3);
  job.add(0, "w", {8}, box({0}, {4}));
  job.add(2, "w", {8}, box({3}, {5}));
  const Error overlap = error_of(job);
  EXPECT_EQ(overlap.rank(), 2);
  EXPECT_EQ(overlap.actual(), "[3, 8)");
  EXPECT_EQ(overlap.expected(), "no element in common with [0, 4) of rank 0");

  Job half(2);
  half.add(1, "w", {8}, box({0}, {4}));
  EXPECT_EQ(error_of(half).expected(), "8 elements of [8]");
  EXPECT_TRUE(plan_save(half.plans, {false, Coverage::kPart}));

  Job flat(2);
  flat.add(0, "v", {8});
  flat.add(1, "w", {8}, box({0, 0}, {4, 4}));
  EXPECT_EQ(error_of(flat).key(), "w");
  EXPECT_EQ(error_of(flat).rank(), 1);
}

TEST(GlobalSavePlan, RefusesSizesOutOfRange) {
  Job huge(3);
  for (std::size_t rank = 0; rank < 3; ++rank) huge.add_value(rank, "v", std::uint64_t{1} << 62);
  EXPECT_EQ(error_of(huge).rank(), 1);
  Job shape(1);
  shape.add(0, "w", {4}, box({0}, {4})).shape = {-4};
  EXPECT_EQ(error_of(shape).key(), "w");
}

}  // namespace
}  // namespace cairn::plan

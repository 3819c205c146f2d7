#include "save/rank_differences.h"

#include <cairn/async_checkpointer.h>
#include <cairn/cairn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "save/save_items.h"
#include "save/testing/named_calls.h"
#include "storage/testing/scratch_directory.h"

namespace cairn::checkpointer {
namespace {

using Names = std::vector<std::string>;

// A state of three ranks: values that all ranks have, one that ranks 1 and 2 have, and one of this rank alone.
StateDict state_of(std::size_t rank, int step, int position, int of_two = 0) {
  StateDict state;
  EXPECT_TRUE(state.add_value(Path{"step"}, Value(step)));
  EXPECT_TRUE(state.add_value(Path{"loader", "position"}, Value(position)));
  if (rank != 0) EXPECT_TRUE(state.add_value(Path{"stage", "of two"}, Value(of_two)));
  EXPECT_TRUE(state.add_value(Path{"of rank " + std::to_string(rank)}, Value(static_cast<int>(rank))));
  // The process keeps plans of several tests: no rank may have an equal part of two of them.
  EXPECT_TRUE(state.add_value(Path{testing::UnitTest::GetInstance()->current_test_info()->name()}, Value(1)));
  return state;
}

// What each of three ranks does in a save: the names of its collective calls, and the warnings of its report.
struct Seen {
  Names calls;
  Names warnings;
};

class RankDifferences : public testing::Test {
 protected:
  RankDifferences() { forget_differences(); }
  ~RankDifferences() override { forget_differences(); }

  // Position: of the rank. Each rank saves by `save(directory, state, options)`, which returns the warnings.
  template <typename Save>
  std::vector<Seen> save_all(std::vector<int> positions, const Save& save) {
    std::vector<Seen> seen(3);
    ++step_;
    const std::filesystem::path directory = scratch_.path() / std::to_string(step_);
    as_three_ranks([&](std::size_t rank, Collectives& collectives) {
      const auto counted = named_calls(collectives, seen[rank].calls);
      const StateDict state = state_of(rank, step_, positions[rank], of_two_[rank]);
      SaveOptions options;
      options.collectives = counted.get();
      seen[rank].warnings = save(rank, directory, state, options);
    });
    return seen;
  }

  std::vector<Seen> save_asynchronously(std::vector<int> positions) {
    return save_all(std::move(positions), [this](std::size_t rank, const auto& directory, const StateDict& state,
                                                 const SaveOptions& options) {
      AsyncSaveOptions together;
      together.save = options;
      const auto saved = savers_[rank].save(directory, state, together);
      EXPECT_TRUE(saved) << saved.error().what();
      const Result<AsyncSaveReport>& report = saved->write.get();
      EXPECT_TRUE(report) << report.error().what();
      return report->warnings;
    });
  }
  std::vector<Seen> save_at_once(std::vector<int> positions) {
    return save_all(std::move(positions),
                    [](std::size_t, const auto& directory, const StateDict& state, const SaveOptions& options) {
                      const auto report = cairn::save(directory, state, options);
                      EXPECT_TRUE(report) << report.error().what();
                      return report->warnings;
                    });
  }

  static void expect_warning(const std::vector<Seen>& seen, const std::string& key = "'loader.position'") {
    ASSERT_EQ(seen[0].warnings.size(), 1u);
    EXPECT_NE(seen[0].warnings[0].find("different values under " + key + ", and"), std::string::npos)
        << seen[0].warnings[0];
    EXPECT_TRUE(seen[1].warnings.empty() && seen[2].warnings.empty());
  }
  static void expect_none(const std::vector<Seen>& seen) {
    for (const Seen& of_rank : seen) EXPECT_TRUE(of_rank.warnings.empty());
  }

  storage::ScratchDirectory scratch_;
  AsyncCheckpointer savers_[3];
  int step_ = 0;
  std::vector<int> of_two_ = {0, 0, 0};
};

TEST_F(RankDifferences, AreFoundByTheFirstPlan) {
  expect_warning(save_asynchronously({5, 5, 6}));
  expect_none(save_asynchronously({5, 5, 7}));
  forget_differences();
  expect_warning(save_at_once({15, 16, 15}));
}

TEST_F(RankDifferences, AreFoundByOneFurtherExchange) {
  expect_none(save_asynchronously({1, 1, 1}));
  const std::vector<Seen> equal = save_asynchronously({2, 2, 2});
  expect_none(equal);
  EXPECT_EQ(equal[1].calls, Names{"smallest"});
  const std::vector<Seen> different = save_asynchronously({3, 4, 3});
  expect_warning(different);
  EXPECT_EQ(different[1].calls, (Names{"smallest", "gather"}));
  const std::vector<Seen> later = save_asynchronously({4, 5, 6});
  expect_none(later);
  EXPECT_EQ(later[1].calls, Names{"smallest"});
}

TEST_F(RankDifferences, AreFoundByALaterBlockingSave) {
  expect_none(save_at_once({1, 1, 1}));
  const std::vector<Seen> equal = save_at_once({2, 2, 2});
  expect_none(equal);
  const std::vector<Seen> different = save_at_once({3, 4, 3});
  expect_warning(different);
  Names calls = equal[1].calls;
  calls.insert(calls.begin() + 1, "gather");
  EXPECT_EQ(different[1].calls, calls);
}

TEST_F(RankDifferences, AreFoundAmongSomeRanks) {
  expect_none(save_asynchronously({1, 1, 1}));
  of_two_ = {0, 5, 6};
  const std::vector<Seen> different = save_asynchronously({2, 2, 2});
  expect_warning(different, "'stage.of two'");
  EXPECT_EQ(different[1].calls, (Names{"smallest", "gather"}));
  forget_differences();
  of_two_ = {0, 0, 0};
  expect_none(save_at_once({3, 3, 3}));
  of_two_ = {0, 5, 6};
  expect_warning(save_at_once({4, 4, 4}), "'stage.of two'");
}

TEST_F(RankDifferences, WarnInTheNextSaveAfterFailure) {
  const auto fail = [this](std::vector<int> positions) {
    save_all(std::move(positions), [](std::size_t, const auto& directory, const StateDict& state, SaveOptions options) {
      options.before_commit = [] { return Error(ErrorCode::kCancelled, "for the test"); };
      EXPECT_FALSE(cairn::save(directory, state, options));
      return Names();
    });
  };
  fail({1, 2, 3});  // by the first plan
  expect_warning(save_at_once({1, 2, 3}));
  forget_differences();
  fail({1, 2, 3});  // by a later save
  expect_warning(save_at_once({1, 2, 3}));
}

// The parts of the ranks, reduced.
std::vector<ContentParts::Common> commons_of(const std::vector<StateDict>& states) {
  std::vector<ContentParts> parts;
  std::vector<std::int64_t> smallest(ContentParts::kNumbers, std::numeric_limits<std::int64_t>::max());
  for (const StateDict& state : states) {
    const auto items = SaveItems::make(state);
    parts.emplace_back(items->sources());
    std::vector<std::int64_t> numbers;
    parts.back().append_to(numbers);
    EXPECT_EQ(numbers.size(), smallest.size());
    for (std::size_t i = 0; i < numbers.size(); ++i) smallest[i] = std::min(smallest[i], numbers[i]);
  }
  std::vector<ContentParts::Common> commons;
  for (const ContentParts& of_rank : parts) commons.push_back(of_rank.common_of(smallest));
  return commons;
}

TEST_F(RankDifferences, AreFoundInCommonParts) {
  const auto equal = commons_of({state_of(0, 1, 5), state_of(1, 1, 5)});
  const auto different = commons_of({state_of(0, 1, 5), state_of(1, 1, 6)});
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(equal[rank].different.none());
    EXPECT_TRUE(different[rank].different[0]);
    EXPECT_EQ(equal[rank].watched.size(), 3u);  // the parts of the ranks' own keys differ in their keys
  }
}

TEST_F(RankDifferences, AreFoundBesideAValueOfOneRank) {
  std::vector<StateDict> states(2);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const std::string own = "__rank_" + std::to_string(rank);
    ASSERT_TRUE(states[rank].add_value(Path{"app", "rng", own}, Value(7)));
    ASSERT_TRUE(states[rank].add_value(Path{"app", "step"}, Value(static_cast<int>(rank))));
  }
  const auto commons = commons_of(states);
  EXPECT_TRUE(commons[0].different[0] && commons[1].different[0]);
  EXPECT_EQ(commons[0].watched.size(), 1u);
}

}  // namespace
}  // namespace cairn::checkpointer

#include "save/vote.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <limits>

namespace cairn::checkpointer {
namespace {

Result<VoteCount> count_of(const std::vector<std::optional<Vote>>& votes) {
  std::vector<std::int64_t> smallest = numbers_of(votes.front());
  for (const std::optional<Vote>& vote : votes) {
    const std::vector<std::int64_t> numbers = numbers_of(vote);
    for (std::size_t i = 0; i < numbers.size(); ++i) smallest[i] = std::min(smallest[i], numbers[i]);
  }
  return count_votes(smallest);
}

constexpr std::uint64_t kGreatest = std::numeric_limits<std::uint64_t>::max();

commit::SaveTicket full_ticket() {
  return {{{kGreatest, 2}, {3, kGreatest >> 1}, 5, 6, commit::SaveForm::kModel}, true};
}

TEST(Vote, AgreesOnPlanAndTicket) {
  const auto count = count_of({Vote{kGreatest, {}}, Vote{kGreatest, full_ticket()}, Vote{kGreatest, {}}});
  ASSERT_TRUE(count && count->all_well && count->ticket);
  EXPECT_EQ(count->plan_id, kGreatest);
  EXPECT_EQ(commit::encode_ticket(*count->ticket), commit::encode_ticket(full_ticket()));
}

TEST(Vote, DifferentPlansShareTheTicket) {
  for (const std::uint64_t plan : {std::uint64_t{0}, std::uint64_t{8}, kGreatest}) {
    const auto count = count_of({Vote{7, full_ticket()}, Vote{plan, {}}});
    ASSERT_TRUE(count && count->all_well && count->ticket);
    EXPECT_EQ(count->plan_id, 0u);
  }
}

TEST(Vote, TakenNamesMakeTheTicketStale) {
  const auto count = count_of({Vote{7, full_ticket()}, Vote{7, {}, false}});
  ASSERT_TRUE(count && count->ticket);
  EXPECT_FALSE(count->ticket->fresh);
}

TEST(Vote, CountsAFailedRank) {
  const auto count = count_of({Vote{7, full_ticket()}, std::nullopt});
  ASSERT_TRUE(count);
  EXPECT_FALSE(count->all_well);
}

Vote with_content(std::uint64_t plan, std::uint64_t sum, bool noted = false) {
  Vote vote{plan, full_ticket()};
  vote.content_sums[0] = sum;
  vote.differences_noted = noted;
  return vote;
}

TEST(Vote, ComparesTheContentOfOnePlan) {
  EXPECT_TRUE(count_of({with_content(7, kGreatest), with_content(7, kGreatest)})->different.none());
  const auto different = count_of({with_content(7, 1), with_content(7, 2), with_content(7, 1)});
  EXPECT_TRUE(different->different[0]);
  EXPECT_FALSE(different->differences_noted);
  EXPECT_TRUE(count_of({with_content(7, 1), with_content(8, 2)})->different.none());
}

TEST(Vote, ComparesTheContentOfRankSets) {
  const auto sums = [](std::optional<std::uint64_t> of_four, std::optional<std::uint64_t> of_last) {
    Vote vote{7, full_ticket()};
    vote.content_sums[4] = of_four;
    vote.content_sums.back() = of_last;
    return vote;
  };
  const auto equal = count_of({sums(5, {}), sums({}, 9), sums(5, {}), sums({}, 9)});
  EXPECT_TRUE(equal->different.none());
  EXPECT_TRUE(equal->ticket);
  const auto different = count_of({sums(5, {}), sums({}, 9), sums(5, {}), sums({}, 8)});
  EXPECT_TRUE(different->different.count() == 1 && different->different[save_plan::kRankSetsMax - 1]);
}

TEST(Vote, CountsANotedDifference) {
  EXPECT_TRUE(count_of({with_content(7, 1), with_content(7, 0, true)})->differences_noted);
}

TEST(Vote, NoCoordinatorMeansNoTicket) {
  const auto count = count_of({Vote{7, {}}, Vote{7, {}}});
  ASSERT_TRUE(count && count->all_well);
  EXPECT_FALSE(count->ticket);
}

TEST(Vote, DifferentVersionsAreNotWell) {
  std::vector<std::int64_t> numbers = numbers_of(Vote{7, full_ticket()});
  --numbers[1];  // another rank's version
  EXPECT_FALSE(count_votes(numbers)->all_well);
}

TEST(Vote, TwoCoordinatorsAreNotWell) {
  EXPECT_FALSE(count_of({Vote{7, full_ticket(), true, 1}, Vote{7, {}, true, 2}})->all_well);
}

TEST(Vote, RefusesNumbersOfNoRanks) {
  std::vector<std::int64_t> numbers = numbers_of(Vote{7, full_ticket()});
  numbers.back() = 4;
  EXPECT_EQ(count_votes(numbers).error().code(), ErrorCode::kCorrupt);
  numbers.pop_back();
  EXPECT_EQ(count_votes(numbers).error().code(), ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace cairn::checkpointer

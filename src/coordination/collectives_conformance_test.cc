// The promises of Collectives, tested on every kind with one thread per rank, and other promises of a local group.
#include <cairn/collectives.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <random>
#include <stdexcept>
#include <thread>

namespace cairn {
namespace {

using Messages = std::vector<std::string>;
using Group = std::vector<std::unique_ptr<Collectives>>;

struct Kind {
  const char* name;
  Group (*make)(std::size_t rank_count);
};

Group make_local(std::size_t rank_count) { return make_local_group(rank_count); }

CollectiveCalls calls_of(std::shared_ptr<Collectives> inner) {
  return {
      .rank = inner->rank(),
      .size = inner->size(),
      .gather = [inner](std::string bytes, std::size_t root) { return inner->gather(std::move(bytes), root); },
      .scatter = [inner](Messages bytes, std::size_t root) { return inner->scatter(std::move(bytes), root); },
      .broadcast = [inner](std::string bytes, std::size_t root) { return inner->broadcast(std::move(bytes), root); },
      .all_gather = [inner](std::string bytes) { return inner->all_gather(std::move(bytes)); },
      .barrier = [inner] { return inner->barrier(); },
      .smallest = [inner](std::vector<std::int64_t> numbers) { return inner->smallest(std::move(numbers)); },
      .broadcast_in_place = [inner](std::span<std::byte> bytes,
                                    std::size_t root) { return inner->broadcast_in_place(bytes, root); },
      .subgroup = [inner](const std::vector<std::size_t>& ranks) { return inner->subgroup(ranks); }};
}

// Callback collectives; the functions call a local group.
Group make_callback(std::size_t rank_count) {
  Group group;
  for (auto& inner : make_local_group(rank_count)) {
    group.push_back(make_collectives(calls_of(std::move(inner))).value());
  }
  return group;
}

// Only the functions that may not be missing.
Group make_required(std::size_t rank_count) {
  Group group;
  for (auto& inner : make_local_group(rank_count)) {
    CollectiveCalls calls = calls_of(std::move(inner));
    calls.smallest = nullptr;
    calls.broadcast_in_place = nullptr;
    calls.subgroup = nullptr;
    group.push_back(make_collectives(calls).value());
  }
  return group;
}

using Body = std::function<void(std::unique_ptr<Collectives>)>;

// Runs `body` on one thread per rank; `body` may destroy its rank early.
void run_ranks(Group group, const Body& body) {
  std::vector<std::jthread> threads;
  for (auto& rank : group) threads.emplace_back([&body, own = std::move(rank)]() mutable { body(std::move(own)); });
}

// Differs in length and content between ranks and numbers; some messages are empty, and the rest contain zeros.
std::string message_of(std::size_t rank, std::size_t number) {
  std::string bytes;
  for (std::size_t i = 0; i < rank * 37 + number % 11; ++i) bytes.push_back(static_cast<char>(i % 3 * (rank + number)));
  return bytes;
}

Messages messages_of_all(std::size_t size, std::size_t number) {
  Messages all;
  for (std::size_t rank = 0; rank < size; ++rank) all.push_back(message_of(rank, number));
  return all;
}

void check_gather(Collectives& ranks, std::size_t root, std::size_t number) {
  const Messages expected = ranks.rank() == root ? messages_of_all(ranks.size(), number) : Messages();
  EXPECT_EQ(ranks.gather(message_of(ranks.rank(), number), root).value(), expected);
}

void check_scatter(Collectives& ranks, std::size_t root, std::size_t number) {
  const Messages given = ranks.rank() == root ? messages_of_all(ranks.size(), number) : Messages();
  EXPECT_EQ(ranks.scatter(given, root).value(), message_of(ranks.rank(), number));
}

void check_broadcast(Collectives& ranks, std::size_t root, std::size_t number) {
  const std::string given = ranks.rank() == root ? message_of(root, number) : "ignored";
  EXPECT_EQ(ranks.broadcast(given, root).value(), message_of(root, number));
}

void check_broadcast_in_place(Collectives& ranks, std::size_t root, std::size_t number) {
  const std::string expected = message_of(root, number);
  std::string bytes = ranks.rank() == root ? expected : std::string(expected.size(), 'x');
  EXPECT_TRUE(ranks.broadcast_in_place(std::as_writable_bytes(std::span(bytes)), root));
  EXPECT_EQ(bytes, expected);
}

void check_all_gather(Collectives& ranks, std::size_t number) {
  EXPECT_EQ(ranks.all_gather(message_of(ranks.rank(), number)).value(), messages_of_all(ranks.size(), number));
}

void check_smallest(Collectives& ranks, std::size_t number) {
  const auto size = static_cast<std::int64_t>(ranks.size());
  const auto mine = static_cast<std::int64_t>(ranks.rank());
  const std::int64_t greatest = std::numeric_limits<std::int64_t>::max();
  const std::int64_t least = std::numeric_limits<std::int64_t>::min();
  const auto common = static_cast<std::int64_t>(number);
  EXPECT_EQ(ranks.smallest({mine, -mine, common, mine == 0 ? least : greatest}).value(),
            (std::vector<std::int64_t>{0, 1 - size, common, least}));
}

class CollectivesConformance : public testing::TestWithParam<Kind> {
 protected:
  static Group make(std::size_t rank_count) { return GetParam().make(rank_count); }
};

TEST_P(CollectivesConformance, HasItsRankAndSize) {
  const Group group = make(3);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(group[rank]->rank(), rank);
    EXPECT_EQ(group[rank]->size(), 3u);
  }
}

TEST_P(CollectivesConformance, CarriesAnyLengthForEveryRoot) {
  for (const std::size_t size : {1u, 2u, 7u}) {
    run_ranks(make(size), [size](std::unique_ptr<Collectives> ranks) {
      for (std::size_t root = 0; root < size; ++root) {
        check_gather(*ranks, root, 1);
        check_scatter(*ranks, root, 2);
        check_broadcast(*ranks, root, 3);
        check_broadcast_in_place(*ranks, root, 5);
        check_all_gather(*ranks, 0);
        check_smallest(*ranks, 4);
        EXPECT_TRUE(ranks->barrier());
      }
    });
  }
}

TEST_P(CollectivesConformance, CarriesTenMegabytes) {
  const auto large = [](std::size_t rank) { return std::string(10'000'000 + rank, static_cast<char>('a' + rank)); };
  run_ranks(make(2), [&](std::unique_ptr<Collectives> ranks) {
    const Messages both{large(0), large(1)};
    const bool is_root = ranks->rank() == 1;
    EXPECT_TRUE(ranks->gather(both[ranks->rank()], 1).value() == (is_root ? both : Messages()));
    EXPECT_TRUE(ranks->scatter(is_root ? both : Messages(), 1).value() == both[ranks->rank()]);
    EXPECT_TRUE(ranks->broadcast(is_root ? both[1] : "", 1).value() == both[1]);
    EXPECT_TRUE(ranks->all_gather(both[ranks->rank()]).value() == both);
  });
}

TEST_P(CollectivesConformance, StaysInStepOverMixedCalls) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  run_ranks(make(7), [seed](std::unique_ptr<Collectives> ranks) {
    std::mt19937 chance(seed);  // equal calls on every rank
    for (std::size_t number = 0; number < 2000; ++number) {
      const std::size_t root = chance() % ranks->size();
      switch (chance() % 7) {
        case 0: check_gather(*ranks, root, number); break;
        case 1: check_scatter(*ranks, root, number); break;
        case 2: check_broadcast(*ranks, root, number); break;
        case 3: check_all_gather(*ranks, number); break;
        case 4: check_smallest(*ranks, number); break;
        case 5: check_broadcast_in_place(*ranks, root, number); break;
        default: EXPECT_TRUE(ranks->barrier());
      }
    }
  });
}

TEST_P(CollectivesConformance, FailsOnAWrongNumberOfMessages) {
  for (const std::size_t count : {0u, 2u, 4u}) {
    run_ranks(make(3), [count](std::unique_ptr<Collectives> ranks) {
      const bool is_root = ranks->rank() == 2;
      const auto result = ranks->scatter(is_root ? Messages(count) : Messages(), 2);
      EXPECT_EQ(result.error().code(), is_root ? ErrorCode::kInvalidArgument : ErrorCode::kUnavailable);
    });
  }
}

TEST_P(CollectivesConformance, RefusesListsOfUnequalLength) {
  run_ranks(make(2), [](std::unique_ptr<Collectives> ranks) {
    const auto result = ranks->smallest(std::vector<std::int64_t>(ranks->rank() + 1));
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code(), ErrorCode::kInvalidArgument);
  });
}

TEST_P(CollectivesConformance, RefusesABroadcastOfOtherSize) {
  run_ranks(make(2), [](std::unique_ptr<Collectives> ranks) {
    std::vector<std::byte> bytes(ranks->rank() + 1);
    const auto result = ranks->broadcast_in_place(bytes, 0);
    if (ranks->rank() == 1) EXPECT_EQ(result.error().code(), ErrorCode::kInvalidArgument);
  });
}

TEST_P(CollectivesConformance, HasSubgroupsOrNone) {
  run_ranks(make(4), [](std::unique_ptr<Collectives> ranks) {
    const std::size_t half = ranks->rank() % 2;
    const std::vector<std::size_t> members{half, half + 2};
    Collectives* const subgroup = ranks->subgroup(members).value();
    EXPECT_EQ(subgroup, ranks->subgroup(members).value());
    EXPECT_EQ(subgroup == nullptr, std::string(GetParam().name) == "Required");
    if (subgroup != nullptr) {
      EXPECT_EQ(subgroup->size(), 2u);
      EXPECT_EQ(subgroup->rank(), ranks->rank() / 2);
      check_all_gather(*subgroup, 4);
      check_broadcast_in_place(*subgroup, 1, 9);
      if (ranks->rank() == 3) EXPECT_FALSE(subgroup->broadcast("", 2));
    }
    check_all_gather(*ranks, 6);  // the failure of the subgroup is the subgroup's alone
  });
}

TEST_P(CollectivesConformance, RefusesARootThatIsNoRank) {
  for (const std::size_t root : {std::size_t{1}, ~std::size_t{0}}) {
    EXPECT_EQ(make(1)[0]->gather("", root).error().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(make(1)[0]->scatter({""}, root).error().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(make(1)[0]->broadcast("", root).error().code(), ErrorCode::kInvalidArgument);
  }
}

TEST_P(CollectivesConformance, RefusesEveryCallAfterAFailure) {
  const Group group = make(1);
  const std::string reason = group[0]->broadcast("", 1).error().what();
  const auto refused = group[0]->all_gather("x");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kUnavailable);
  EXPECT_NE(std::string(refused.error().what()).find(reason), std::string::npos) << refused.error().what();
  EXPECT_FALSE(group[0]->gather("", 0));
  EXPECT_FALSE(group[0]->scatter({""}, 0));
  EXPECT_FALSE(group[0]->barrier());
}

TEST_P(CollectivesConformance, FailsPendingCallsOnADeparture) {
  run_ranks(make(4), [](std::unique_ptr<Collectives> ranks) {
    check_all_gather(*ranks, 5);
    if (ranks->rank() == 2) return;
    const auto result = ranks->barrier();
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code(), ErrorCode::kUnavailable);
  });
}

TEST_P(CollectivesConformance, FailsLaterCallsAfterADeparture) {
  const std::vector<std::function<bool(Collectives&)>> calls{
      [](Collectives& ranks) { return ranks.gather("x", ranks.rank()).has_value(); },
      [](Collectives& ranks) {
        return ranks.scatter({"x", "y"}, ranks.rank()).has_value();
      },
      [](Collectives& ranks) { return ranks.broadcast("x", ranks.rank()).has_value(); },
      [](Collectives& ranks) { return ranks.all_gather("x").has_value(); },
      [](Collectives& ranks) { return ranks.smallest({1}).has_value(); },
      [](Collectives& ranks) { return ranks.barrier().has_value(); }};
  for (const auto& call : calls) {
    Group group = make(2);
    group[0].reset();
    EXPECT_FALSE(call(*group[1]));
  }
}

TEST_P(CollectivesConformance, KeepsMessagesOfADepartedRank) {
  Group group = make(2);
  ASSERT_TRUE(group[1]->gather("last words", 0));
  group[1].reset();
  EXPECT_EQ(group[0]->gather("", 0).value(), (Messages{"", "last words"}));
  EXPECT_FALSE(group[0]->barrier());
}

INSTANTIATE_TEST_SUITE_P(Engines, CollectivesConformance,
                         testing::Values(Kind{"Local", &make_local}, Kind{"Callback", &make_callback},
                                         Kind{"Required", &make_required}),
                         [](const auto& kind) { return kind.param.name; });

TEST(LocalGroup, RefusesASubgroupOfWrongRanks) {
  for (const std::vector<std::size_t>& ranks : {std::vector<std::size_t>{}, {1}, {1, 0}, {0, 0}, {0, 3}}) {
    EXPECT_EQ(make_local_group(3)[0]->subgroup(ranks).error().code(), ErrorCode::kInvalidArgument);
  }
}

TEST(LocalGroup, SaysWhichRankLeftAndWhy) {
  Group group = make_local_group(3);
  ASSERT_FALSE(group[1]->broadcast("", 3));
  const Error error = group[0]->barrier().error();
  EXPECT_EQ(error.rank(), 1);
  EXPECT_NE(error.message().find("the root is not a rank"), std::string::npos) << error.what();
}

TEST(LocalGroup, GivesUpWaitingAfterTheTimeout) {
  Group group = make_local_group(3, std::chrono::milliseconds(1));
  const Error error = group[0]->barrier().error();
  EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
  EXPECT_EQ(error.rank(), 1);
  EXPECT_FALSE(group[1]->barrier());
  EXPECT_TRUE(group[2]->barrier());  // every rank has called barrier()
  EXPECT_FALSE(group[2]->barrier());
}

// Rank 0 has sent no message either, but the call does not need one.
TEST(LocalGroup, NamesTheRootMissingAtTimeout) {
  Group group = make_local_group(3, std::chrono::milliseconds(1));
  EXPECT_EQ(group[2]->broadcast("", 1).error().rank(), 1);
  group = make_local_group(3, std::chrono::milliseconds(1));
  EXPECT_EQ(group[2]->scatter({}, 1).error().rank(), 1);
  group = make_local_group(3, std::chrono::milliseconds(1));
  EXPECT_EQ(group[2]->gather("", 2).error().rank(), 0);
}

TEST(LocalGroup, NoticesDifferentCalls) {
  run_ranks(make_local_group(2), [](std::unique_ptr<Collectives> ranks) {
    EXPECT_FALSE(ranks->rank() == 0 ? ranks->all_gather("").has_value() : ranks->barrier().has_value());
  });
  Group group = make_local_group(2);
  ASSERT_TRUE(group[0]->broadcast("", 0));
  const Error error = group[1]->broadcast("", 1).error();
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error.expected(), "broadcast with root 0");
  EXPECT_EQ(error.actual(), "broadcast with root 1");
}

CollectiveCalls calls_of_one() { return calls_of(std::move(make_local_group(1)[0])); }

TEST(CallbackCollectives, TurnsAnExceptionIntoAnError) {
  CollectiveCalls calls = calls_of_one();
  calls.barrier = []() -> Result<void> { throw std::runtime_error("peer is gone"); };
  const auto ranks = make_collectives(calls).value();
  const Error error = ranks->barrier().error();
  EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
  EXPECT_EQ(error.message(), "barrier failed: peer is gone");
}

TEST(CallbackCollectives, CallsNothingAfterAFailure) {
  CollectiveCalls calls = calls_of_one();
  int count = 0;
  calls.barrier = [&count]() -> Result<void> {
    ++count;
    return Error(ErrorCode::kCancelled, "stop");
  };
  const auto ranks = make_collectives(calls).value();
  EXPECT_EQ(ranks->barrier().error().code(), ErrorCode::kCancelled);
  EXPECT_FALSE(ranks->barrier());
  EXPECT_EQ(count, 1);
}

TEST(CallbackCollectives, DistrustsTheNumberOfMessages) {
  CollectiveCalls calls = calls_of_one();
  calls.gather = [](std::string, std::size_t) -> Result<Messages> { return Messages{}; };
  calls.all_gather = [](std::string) -> Result<Messages> { return Messages(2); };
  EXPECT_EQ(make_collectives(calls).value()->gather("", 0).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(make_collectives(calls).value()->all_gather("").error().code(), ErrorCode::kInvalidArgument);
}

TEST(CallbackCollectives, NeedsAValidRankAndAllFunctions) {
  CollectiveCalls calls = calls_of_one();
  calls.rank = 1;
  EXPECT_EQ(make_collectives(calls).error().code(), ErrorCode::kInvalidArgument);
  calls = calls_of_one();
  calls.scatter = nullptr;
  EXPECT_EQ(make_collectives(calls).error().code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace cairn

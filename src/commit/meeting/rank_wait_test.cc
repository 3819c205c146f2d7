// The calls into the storage of ranks that wait, counted: a file system serves thousands of ranks.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "commit/meeting/decision_watch.h"
#include "commit/meeting/rank_rendezvous.h"
#include "commit/save_transaction.h"
#include "commit/testing/dead_lease.h"
#include "commit/testing/one_save.h"
#include "format/manifest/trailer.h"
#include "storage/testing/counting_storage.h"
#include "storage/testing/model_storage.h"
#include "storage/testing/view_storage.h"

namespace cairn::commit {
namespace {

using Clock = std::chrono::steady_clock;
using storage::CountingStorage;
using storage::ModelStorage;

class WaitOfRanks : public testing::Test {
 protected:
  WaitOfRanks() { claim_->keep_folder(); }

  std::vector<std::vector<std::string>> names_of(std::uint32_t count) const {
    std::vector<std::vector<std::string>> names;
    for (std::uint32_t rank = 0; rank < count; ++rank) names.push_back({data_file_name(claim_->ticket(), rank, 0)});
    return names;
  }
  void publish(const std::string& name) {
    const std::string data = data_file_of(claim_->ticket().identity.save_id);
    ASSERT_TRUE(disk_.create_whole(name, data, Durability::kBuffered));
  }
  // The wait of the coordinator, rank 0, until `interrupted`.
  Result<std::vector<RankRendezvous::Files>> meet(std::uint32_t count, const std::function<bool()>& interrupted) {
    RankRendezvous rendezvous(counting_, marks_, claim_->ticket().identity, SaveDeadlines());
    return rendezvous.wait_for_files(names_of(count), 0, interrupted);
  }

  ModelStorage disk_;
  std::unique_ptr<SaveTransaction> claim_ = claim_checkpoint(disk_, save_number(4)).value();
  std::atomic<std::uint64_t> calls_{0};
  CountingStorage counting_{disk_, calls_};
  SaveMarks marks_{counting_, claim_->ticket().identity.save_id};
};

TEST_F(WaitOfRanks, TakesTwoCallsPerSecondAtMost) {
  DecisionWatch watch(counting_, marks_, {claim_->ticket().identity.save_id, 0, Durability::kDurable}, {});
  const auto wait = [&](std::chrono::seconds duration) {
    for (const auto end = Clock::now() + duration; Clock::now() < end;) {
      const auto decision = watch.look();
      ASSERT_TRUE(decision && !*decision);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  wait(std::chrono::seconds(6));
  calls_ = 0;
  wait(std::chrono::seconds(5));
  EXPECT_LE(calls_, 10u + 5u) << "and the calls of one more heartbeat, at the edge of the interval";
  EXPECT_GE(calls_, 3u);
}

TEST_F(WaitOfRanks, SeesTheDecisionAtTheNextLook) {
  DecisionWatch watch(counting_, marks_, {claim_->ticket().identity.save_id, 0, Durability::kDurable}, {});
  ASSERT_FALSE(watch.look().value());
  ASSERT_TRUE(marks_.write_decision({{}, false, {"a leftover stays"}}));
  marks_.hint_at_decision();
  watch.note_waiting();
  const auto decision = watch.look();
  ASSERT_TRUE(decision && *decision);
  EXPECT_EQ((*decision)->warnings, std::vector<std::string>{"a leftover stays"});
}

TEST_F(WaitOfRanks, SeesADecisionWithoutAHint) {
  DecisionWatch watch(counting_, marks_, {claim_->ticket().identity.save_id, 0, Durability::kDurable}, {});
  ASSERT_FALSE(watch.look().value());
  ASSERT_TRUE(marks_.write_decision({}));
  std::optional<Decision> decision;
  while (!decision) decision = watch.look().value();
  EXPECT_FALSE(decision->failure);
}

TEST_F(WaitOfRanks, AsksForAPartOfTheRanks) {
  constexpr std::uint32_t kRanks = 4000;
  const auto met = meet(kRanks, [] { return true; });  // after the first look
  ASSERT_FALSE(met);
  EXPECT_EQ(met.error().code(), ErrorCode::kCancelled);
  EXPECT_LE(calls_, 5 * (1 + kRanks / 16) + 10);
}

// The disk may have had no room for the hint, or the rank may have died before it.
TEST_F(WaitOfRanks, EndsAtAFailureWithoutAHint) {
  ASSERT_TRUE(Lease::take_as_rank(disk_, save_number(4), 30));  // the rank lives, and waits for the decision
  ASSERT_TRUE(marks_.write_failure(30, Error(ErrorCode::kNoSpace, "the disk is full")));
  ASSERT_TRUE(disk_.remove(marks_.path_of("failure")));
  const auto met = meet(40, {});
  ASSERT_FALSE(met);
  EXPECT_EQ(met.error().code(), ErrorCode::kNoSpace);
  EXPECT_EQ(met.error().rank(), 30u);
}

TEST_F(WaitOfRanks, TakesAFewCallsPerRank) {
  constexpr std::uint32_t kRanks = 2000;
  for (const auto& names : names_of(kRanks)) publish(names.front());
  const auto met = meet(kRanks, {});
  ASSERT_TRUE(met) << met.error().what();
  EXPECT_TRUE(met->front().empty());
  for (std::uint32_t rank = 1; rank < kRanks; ++rank) EXPECT_EQ((*met)[rank].size(), 1u);
  EXPECT_LE(calls_, 4 * kRanks);
}

TEST_F(WaitOfRanks, EndsAtTheFailureOfAnyRank) {
  ASSERT_TRUE(marks_.write_failure(1999, Error(ErrorCode::kNoSpace, "the disk is full")));
  const auto met = meet(2000, {});
  ASSERT_FALSE(met);
  EXPECT_EQ(met.error().code(), ErrorCode::kNoSpace);
  EXPECT_EQ(met.error().rank(), 1999u);
}

TEST_F(WaitOfRanks, FindsADeadRankAmongMany) {
  leave_dead_lease(disk_, marks_.folder(), rank_lease_name(700));
  const auto met = meet(1000, {});
  ASSERT_FALSE(met);
  EXPECT_EQ(met.error().rank(), 700u) << met.error().what();
  EXPECT_NE(std::string(met.error().what()).find("has died"), std::string::npos) << met.error().what();
}

TEST_F(WaitOfRanks, SaysThatTheFolderWasReplaced) {
  disk_.replace_folder(marks_.folder());
  RankRendezvous rendezvous(counting_, marks_, claim_->ticket().identity, SaveDeadlines());
  const std::vector<Error> failures = rendezvous.failures();
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures[0].code(), ErrorCode::kUnsafe);
}

// The times of two incomplete files of a rank do not add up.
TEST_F(WaitOfRanks, GivesEachFileItsOwnTime) {
  ASSERT_TRUE(Lease::take_as_rank(disk_, save_number(4), 1));  // the file stays
  const std::string first = data_file_name(claim_->ticket(), 1, 0), second = data_file_name(claim_->ticket(), 1, 1);
  SaveDeadlines deadlines;
  deadlines.progress = std::chrono::milliseconds(50);
  ASSERT_TRUE(disk_.create_whole(first, "incomplete", Durability::kBuffered));
  int looks = 0;
  const auto after_a_look = [&] {
    ++looks;
    if (looks == 1) {
      for (const auto begin = Clock::now(); Clock::now() - begin <= deadlines.progress;) std::this_thread::yield();
      EXPECT_TRUE(disk_.remove(first));
      publish(first);
      EXPECT_TRUE(disk_.create_whole(second, "incomplete", Durability::kBuffered));
    } else if (looks == 2) {
      EXPECT_TRUE(disk_.remove(second));
      publish(second);
    }
    return false;
  };
  RankRendezvous rendezvous(counting_, marks_, claim_->ticket().identity, deadlines);
  const auto met = rendezvous.wait_for_files({{}, {first, second}}, 0, after_a_look);
  ASSERT_TRUE(met) << met.error().what();
  EXPECT_EQ((*met)[1].size(), 2u);
}

// Rank 2 enters at the first look at the lease of rank 1. At the next look at a lease, its rank has left.
class LateRankTwo final : public storage::ViewStorage {
 public:
  explicit LateRankTwo(ModelStorage& disk) : ViewStorage(disk), disk_(disk) {}
  Result<double> touched_at(std::string_view name) const override {
    const bool is_of_two = name.ends_with("/lease-2");
    if (name.ends_with("/lease-1") && !std::exchange(has_entered_, true)) {
      EXPECT_TRUE(Lease::take_as_rank(disk_, save_number(4), 2));  // the file stays
    } else if (is_of_two || name.ends_with("/lease-1")) {
      EXPECT_TRUE(disk_.remove(name));
      has_left_ = has_left_ || is_of_two;
    }
    return ViewStorage::touched_at(name);
  }
  bool has_left() const { return has_left_; }

 private:
  ModelStorage& disk_;
  mutable bool has_entered_ = false;
  mutable bool has_left_ = false;
};

TEST_F(WaitOfRanks, IncludesALateRanksLease) {
  ASSERT_TRUE(Lease::take_as_rank(disk_, save_number(4), 1));  // the file stays
  const LateRankTwo late(disk_);
  RankRendezvous(late, marks_, claim_->ticket().identity, SaveDeadlines()).wait_until_heard({});
  EXPECT_TRUE(late.has_left());
}

TEST_F(WaitOfRanks, EndsAtATrailerThatIsDamaged) {
  ASSERT_TRUE(Lease::take_as_rank(disk_, save_number(4), 1));  // the file stays
  const std::string name = data_file_name(claim_->ticket(), 1, 0);
  std::string data = data_file_of(claim_->ticket().identity.save_id);
  data[data.size() - 20] ^= 1;
  ASSERT_FALSE(manifest::read_trailer_footer(MemorySource(std::as_bytes(std::span(data)))));
  ASSERT_TRUE(disk_.create_whole(name, data, Durability::kBuffered));
  SaveDeadlines deadlines;
  deadlines.progress = std::chrono::milliseconds(50);
  RankRendezvous rendezvous(counting_, marks_, claim_->ticket().identity, deadlines);
  const auto met = rendezvous.wait_for_files({{}, {name}}, 0, {});
  ASSERT_FALSE(met);
  EXPECT_EQ(met.error().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(met.error().rank(), 1u);
}

// The coordinator died after its decision.
class DecisionOfTheDead : public WaitOfRanks {
 protected:
  Decision conclude() {
    leave_dead_lease(disk_, marks_.folder());
    DecisionWatch watch(counting_, marks_, {claim_->ticket().identity.save_id, 0, Durability::kDurable}, {});
    std::optional<Decision> decision;
    while (!decision) decision = watch.look().value();
    return *decision;
  }
};

// A second sync may succeed although data was lost.
TEST_F(DecisionOfTheDead, StaysAFailureAfterACommit) {
  ASSERT_TRUE(claim_->commit("pickle", {}, Durability::kDurable));
  const Error reason(ErrorCode::kUnavailable, "the directory was not synced");
  ASSERT_TRUE(marks_.write_decision({Error::of_ranks({Error(reason).rank(0)}), true, {}}));
  const Decision decision = conclude();
  ASSERT_TRUE(decision.failure);
  EXPECT_EQ(decision.failure->causes().at(0).message(), "the directory was not synced");
  EXPECT_TRUE(decision.files_stay);
}

TEST_F(DecisionOfTheDead, NamesTheRanksThatFailed) {
  ASSERT_TRUE(marks_.write_failure(3, Error(ErrorCode::kNoSpace, "the disk is full")));
  const Decision decision = conclude();
  ASSERT_TRUE(decision.failure);
  ASSERT_EQ(decision.failure->causes().size(), 2u);
  EXPECT_EQ(decision.failure->causes()[0].message(), "the disk is full");
  EXPECT_EQ(decision.failure->causes()[0].rank(), 3u);
  EXPECT_EQ(decision.failure->causes()[1].rank(), 0u);
}

// The coordinator removes its folder file by file.
TEST_F(WaitOfRanks, FindsADecisionWithoutALease) {
  ASSERT_TRUE(marks_.write_decision({Error(ErrorCode::kNoSpace, "the disk is full"), false, {}}));
  ASSERT_TRUE(disk_.remove(marks_.path_of(kLeaseName)));
  DecisionWatch watch(counting_, marks_, {claim_->ticket().identity.save_id, 0, Durability::kDurable}, {});
  const auto decision = watch.look();
  ASSERT_TRUE(decision && *decision && (*decision)->failure);
  EXPECT_EQ((*decision)->failure->code(), ErrorCode::kNoSpace);
  EXPECT_FALSE((*decision)->files_stay);
}

}  // namespace
}  // namespace cairn::commit

// Schedules of two writers of one checkpoint in a bucket: each process dies, loses an answer or does not get the
// outcome of a write at any of its requests, and the second process saves while the first pauses at any request.
//
// After each schedule a reader finds a whole checkpoint, which the reports of the writers allow; after a next save, and
// when the doubt has ended, the store holds the files of the last save alone.
#include <gtest/gtest.h>
#include <sanitizers.h>

#include <array>
#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <string>

#include "commit/checkpoint_removal.h"
#include "commit/testing/bucket_saves.h"

namespace cairn::commit {
namespace {

// What the report of a save says of the commit.
enum class Said : std::uint8_t { kCommitted, kFailed, kNothing };

struct Fault {
  enum class Kind : std::uint8_t { kNone, kDiesBefore, kDiesAfter, kLosesAnswer, kUnknown, kUnknownLate };
  Kind kind = Kind::kNone;
  std::uint64_t request = 0;
};

constexpr std::array<Fault::Kind, 6> kFaults{Fault::Kind::kNone,      Fault::Kind::kDiesBefore,
                                             Fault::Kind::kDiesAfter, Fault::Kind::kLosesAnswer,
                                             Fault::Kind::kUnknown,   Fault::Kind::kUnknownLate};

// More than a save has.
constexpr std::uint64_t kRequests = 26;
// Of a save: its lease, five of the trial of the conditions, and then a look at what is in place.
constexpr std::uint64_t kLook = 6;

struct Schedule {
  bool has_old = true;
  bool one_job = false;
  Fault first;
  std::uint64_t pause = kRequests;  // the request of the first process before which the second saves
  Fault second;
  double paused_seconds = 0;

  std::string text() const {
    const auto of = [](const Fault& fault) {
      return std::to_string(static_cast<int>(fault.kind)) + " at " + std::to_string(fault.request);
    };
    return std::string(has_old ? "old, " : "") + (one_job ? "one job, " : "") + "first: fault " + of(first) +
           ", second before " + std::to_string(pause) + " after " + std::to_string(paused_seconds) + " s: fault " +
           of(second);
  }
};

void set(StoreClient& client, const Fault& fault) {
  switch (fault.kind) {
    case Fault::Kind::kNone: break;
    case Fault::Kind::kDiesBefore: client.die_at(fault.request, StoreClient::Death::kBefore); break;
    case Fault::Kind::kDiesAfter: client.die_at(fault.request, StoreClient::Death::kAfter); break;
    case Fault::Kind::kLosesAnswer: client.lose_answer_at(fault.request); break;
    case Fault::Kind::kUnknown:
    case Fault::Kind::kUnknownLate: client.leave_unknown_at(fault.request); break;
  }
}

class BucketSchedules : public BucketSaves {
 protected:
  static Said run(BucketProcess& process, const Fault& fault) {
    set(*process.client, fault);
    const Result<CommitReport> report = process.save();
    if (report) return Said::kCommitted;
    if (process.client->is_dead()) return Said::kNothing;
    const bool is_unknown = std::string_view(report.error().what()).find("unknown") != std::string_view::npos;
    return is_unknown ? Said::kNothing : Said::kFailed;
  }

  void expect_rest_is_removed(std::uint64_t number) {
    store_->advance_clock(kSilentSeconds);
    save_well(number);
    store_->advance_clock(kOutOfDoubt);
    save_well(number + 1);
    store_->advance_clock(kSilentSeconds);
    save_well(number + 2);
    expect_only(static_cast<int>(number) + 2);
  }

  // Save 1 is the old checkpoint, 2 the second process's, 3 the first's.
  void carry_out(const Schedule& schedule) {
    SCOPED_TRACE(schedule.text());
    store_->become(storage::MemoryObjectStore());
    if (schedule.has_old) save_well(1);
    BucketProcess first = process(3);
    BucketProcess second = process(2, schedule.one_job ? kJob : kOtherJob);
    Said second_said = Said::kFailed;
    bool first_had_committed = false;
    first.client->pause_at(schedule.pause, [&] {
      store_->advance_clock(schedule.paused_seconds);
      first_had_committed = number_in(disk_) == 3;
      second_said = run(second, schedule.second);
    });
    const Said first_said = run(first, schedule.first);

    for (const bool has_landed : {false, true}) {
      const int found = number_in(disk_);
      std::set<int> allowed;
      if (first_said != Said::kFailed) allowed.insert(3);
      if (second_said != Said::kFailed) allowed.insert(2);
      const bool one_committed = first_said == Said::kCommitted || second_said == Said::kCommitted;
      if (!one_committed) allowed.insert(schedule.has_old ? 1 : 0);
      ASSERT_TRUE(allowed.contains(found)) << "found " << found << (has_landed ? ", after late writes" : "");
      if (schedule.first.kind == Fault::Kind::kUnknownLate && !has_landed) first.client->land();
      if (schedule.second.kind == Fault::Kind::kUnknownLate && !has_landed) second.client->land();
    }
    // Two jobs can both commit only one after the other: the second of the two has seen the first's checkpoint.
    if (!schedule.one_job && first_said == Said::kCommitted && second_said == Said::kCommitted &&
        !first_had_committed) {
      // After a lost answer the first process has read its lease.
      const std::uint64_t reads = schedule.first.kind == Fault::Kind::kLosesAnswer ? 1 : 0;
      EXPECT_LE(schedule.pause, kLook + reads);
    }
    expect_rest_is_removed(10);
  }
};

TEST_F(BucketSchedules, KillAtEveryRequest) {
  int runs = 0;
  for (const bool has_old : {false, true}) {
    for (const Fault::Kind kind : kFaults) {
      for (std::uint64_t request = 0; request < kRequests; ++request) {
        Schedule schedule;
        schedule.has_old = has_old;
        schedule.first = {kind, request};
        carry_out(schedule);
        if (HasFatalFailure()) return;
        ++runs;
      }
    }
  }
  EXPECT_EQ(runs, 312);
}

TEST_F(BucketSchedules, SecondWriterAtEveryRequest) {
  for (const bool has_old : {false, true}) {
    for (const bool one_job : {false, true}) {
      for (const double seconds : {0.0, kSilentSeconds, kSilentSeconds + kOutOfDoubt}) {
        for (std::uint64_t pause = 0; pause < kRequests; ++pause) {
          Schedule schedule;
          schedule.has_old = has_old;
          schedule.one_job = one_job;
          schedule.pause = pause;
          schedule.paused_seconds = seconds;
          carry_out(schedule);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_F(BucketSchedules, SeededFaultsOfTwoWriters) {
  const int count = kSanitized ? 500 : 6000;
  for (int seed = 0; seed < count; ++seed) {
    std::mt19937 random(static_cast<std::uint32_t>(seed));
    const auto below = [&random](std::uint64_t limit) { return random() % limit; };
    Schedule schedule;
    schedule.has_old = below(2) == 0;
    schedule.one_job = below(2) == 0;
    schedule.first = {kFaults.at(below(kFaults.size())), below(kRequests)};
    schedule.pause = below(kRequests);
    schedule.second = {kFaults.at(below(kFaults.size())), below(kRequests)};
    schedule.paused_seconds = std::array{0.0, kSilentSeconds, 2 * kSilentSeconds}.at(below(3));
    SCOPED_TRACE("seed " + std::to_string(seed));
    carry_out(schedule);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace cairn::commit

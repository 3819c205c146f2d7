// Asynchronous saves by several ranks, which meet in a real directory: as threads, and as processes that are killed.
#include "commit/meeting/rank_save.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <future>
#include <latch>
#include <map>
#include <thread>

#include "commit/testing/rank_saves.h"
#include "format/manifest/trailer.h"
#include "storage/posix/posix_storage.h"
#include "storage/testing/dying_storage.h"
#include "storage/testing/full_storage.h"
#include "storage/testing/model_storage.h"
#include "storage/testing/scratch_directory.h"
#include "storage/testing/throwing_storage.h"

namespace cairn::commit {
namespace {

using namespace std::chrono_literals;
using storage::ModelStorage;

TEST_F(RankSaves, AreCommittedByASingleRank) {
  save_well(1, 1);
  expect_only(1, 1);
  save_well(2, 1);
  expect_only(2, 1);
}

TEST_F(RankSaves, AreCommittedByAnyCoordinator) {
  int number = 0;
  for (const std::uint32_t coordinator : {0u, 2u, 1u}) {
    expect_all_saved(save(static_cast<std::uint64_t>(++number), 3, coordinator).run());
    expect_only(number);
  }
}

TEST_F(RankSaves, FailOnAllIfOneHasNoBytes) {
  for (const int before : {0, 1}) {
    if (before == 1) save_well(1);
    GroupSave group = save(2, 3);
    group.instead[2] = [](RankSave& save) -> Result<RankSaveReport> {
      const Error reason = Error(ErrorCode::kInvalidArgument, "no bytes today").rank(2).exception({"pkg.Odd", "", {}});
      save.abandon(reason);
      return Error::of_ranks({reason});
    };
    const Reports reports = group.run();
    expect_all_failed(reports, ErrorCode::kInvalidArgument, 2);
    EXPECT_EQ(reports[1].error().causes()[0].exception()->class_name, "pkg.Odd");
    expect_only(before);
  }
}

TEST_F(RankSaves, FailOnAllIfOneIsDropped) {
  save_well(1);
  GroupSave group = save(2, 3);
  group.instead[1] = [](RankSave&) -> Result<RankSaveReport> {
    return Error::of_ranks({Error(ErrorCode::kCancelled, "the save was given up before it had ended").rank(1)});
  };
  expect_all_failed(group.run(), ErrorCode::kCancelled, 1);
  expect_only(1);
}

TEST_F(RankSaves, FailIfTheCoordinatorHasNoBytes) {
  save_well(1);
  GroupSave group = save(2, 3, 1);
  std::latch others_have_entered(2);
  for (const std::uint32_t rank : {0u, 2u}) {
    group.instead[rank] = [&, rank](RankSave& save) {
      others_have_entered.count_down();
      return group.finish(save, rank);
    };
  }
  group.instead[1] = [&](RankSave& save) -> Result<RankSaveReport> {
    others_have_entered.wait();
    const Error reason = Error(ErrorCode::kInvalidArgument, "no bytes today").rank(1);
    save.abandon(reason);
    return Error::of_ranks({reason});
  };
  expect_all_failed(group.run(), ErrorCode::kInvalidArgument, 1);
  expect_only(1);
}

TEST_F(RankSaves, FailOnAllWithoutACommitRequest) {
  GroupSave group = save(1, 2);
  std::latch other_has_entered(1);
  group.instead[1] = [&](RankSave& save) {
    other_has_entered.count_down();
    return group.finish(save, 1);
  };
  group.instead[0] = [&](RankSave& save) {
    other_has_entered.wait();
    return save.finish(RankBytes(group.ticket(), 0, 2).files(), std::nullopt, group.options);
  };
  for (const auto& report : group.run()) {
    ASSERT_FALSE(report);
    EXPECT_EQ(report.error().code(), ErrorCode::kInternal) << report.error().what();
  }
  expect_only(0);
}

TEST_F(RankSaves, NameACoordinatorGivingUpEarly) {
  auto coordinator = RankSave::claim(open(), save_number(1), 1).value();
  const auto save = RankSave::join(open(), coordinator->ticket());
  ASSERT_TRUE(save->enter({0, 2, 1}));
  std::jthread giving_up([&] { coordinator->abandon(Error(ErrorCode::kInvalidArgument, "no plan today")); });
  const auto report = save->finish(RankBytes(save->ticket(), 0, 2).files(), std::nullopt, {});
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().message(), "no plan today");
  EXPECT_EQ(report.error().rank(), 1) << report.error().what();
}

// The failing rank has no files: the coordinator takes the lease of such a rank for its agreement.
TEST_F(RankSaves, FailIfAnEmptyRankFailsEarly) {
  auto coordinator = RankSave::claim(open(), save_number(1), 0).value();
  const SaveTicket ticket = coordinator->ticket();
  const auto save = RankSave::join(open(), ticket);
  save->fail_before_entry({1, 2, 0}, Error(ErrorCode::kInvalidArgument, "no room for the plan"));
  EXPECT_FALSE(storage_->open(folder_of_save(ticket.identity) + "/" + rank_lease_name(1), false));
  ASSERT_TRUE(coordinator->enter({0, 2, 0}));
  CommitRequest request = commit_request_of(ticket, 2);
  request.files[1].clear();
  const auto report = coordinator->finish(RankBytes(ticket, 0, 2).files(), request, {});
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().causes().at(0).message(), "no room for the plan");
  expect_only(0);
}

// A foreign file has the name of the rank's file.
TEST_F(RankSaves, FailOnAllIfOneCannotPublish) {
  for (const std::uint32_t rank : {0u, 2u}) {
    GroupSave group = save(1, 3);
    ASSERT_TRUE(storage_->create_whole(group.name_of(rank), "others", Durability::kBuffered));
    const Reports reports = group.run();
    expect_all_failed(reports, ErrorCode::kUnavailable, rank);
    EXPECT_EQ(reports[0].error().error_number(), EEXIST);
    EXPECT_EQ(names_in(*storage_).size(), 1u);
    ASSERT_TRUE(storage_->remove(group.name_of(rank)));
  }
}

TEST_F(RankSaves, FailWithoutAReasonOnAFullDisk) {
  save_well(1);
  GroupSave group = save(2, 3);
  group.opened_by[1] = [this] { return std::make_unique<storage::FullStorage>(open()); };
  expect_all_failed(group.run(), ErrorCode::kUnavailable, 1);
  expect_only(1);
}

TEST_F(RankSaves, FailARankThatEntersLate) {
  save_well(1);
  GroupSave group = save(2, 3);
  ASSERT_TRUE(storage_->create_whole(group.name_of(0), "others", Durability::kBuffered));
  // The last rank joins once the decision can be read.
  group.opened_by[2] = [&, failed = folder_of(group.ticket().identity.save_id) + "/failed"] {
    while (!storage_->open(failed, false)) std::this_thread::yield();
    return open();
  };
  expect_all_failed(group.run(), ErrorCode::kUnavailable, 0);
  ASSERT_TRUE(storage_->remove(group.name_of(0)));
  expect_only(1);
}

TEST_F(RankSaves, ReadADecisionWrittenLater) {
  save_well(1);
  GroupSave group([this] { return std::make_unique<storage::StorageThatGetsRoom>(open()); }, 3, 0);
  group.claim(save_number(2));
  group.opened_by[1] = [this] { return std::make_unique<storage::FullStorage>(open()); };
  expect_all_failed(group.run(), ErrorCode::kUnavailable, 1);
  expect_only(1);
}

TEST_F(RankSaves, FailIfOneNeverTakesPart) {
  save_well(1);
  GroupSave group = save(2, 3);
  group.options.deadlines.progress = 300ms;
  const Reports reports = group.run({2});
  expect_all_failed(reports, ErrorCode::kUnavailable, 2);
  expect_only(1);
}

TEST_F(RankSaves, RefuseARankInAnotherDirectory) {
  storage::ScratchDirectory elsewhere;
  GroupSave group = save(1, 3);
  group.options.deadlines.progress = 300ms;
  group.opened_by[1] = [&] { return PosixStorage::open_directory(elsewhere.path()).value(); };
  const Reports reports = group.run();
  for (const auto& report : reports) ASSERT_FALSE(report);
  EXPECT_NE(reports[1].error().message().find("common to all ranks"), std::string::npos);
  expect_all_failed({reports[0], reports[2]}, ErrorCode::kUnavailable, 1);
  expect_only(0);
  EXPECT_TRUE(std::filesystem::is_empty(elsewhere.path()));
}

TEST_F(RankSaves, StopWhenOneIsInterrupted) {
  save_well(1);
  for (const std::uint32_t rank : {0u, 2u}) {
    GroupSave group = save(2, 3);
    // Rank `rank` writes files, and then never sees the files of rank 1, which is late.
    std::promise<void> rank_1_may_go_on;
    group.instead[1] = [&](RankSave& save) {
      rank_1_may_go_on.get_future().wait();
      return group.finish(save, 1);
    };
    group.instead[rank] = [&, rank](RankSave& save) {
      const RankBytes bytes(group.ticket(), rank, 3);
      RankSaveOptions options = group.options;
      options.write.interrupted = [&] { return save.progress().phase == ProgressTracker::Phase::kWaiting; };
      const std::optional<CommitRequest> commit_request =
          rank == 0 ? std::optional(group.commit_request()) : std::nullopt;
      Result<RankSaveReport> report = save.finish(bytes.files(), commit_request, options);
      rank_1_may_go_on.set_value();
      return report;
    };
    const Reports reports = group.run();
    for (const auto& report : reports) {
      ASSERT_FALSE(report);
      EXPECT_EQ(report.error().rank(), rank) << report.error().what();
    }
    EXPECT_EQ(reports[rank].error().code(), ErrorCode::kCancelled);
    expect_only(1);
  }
}

TEST_F(RankSaves, AreCommittedInTheJobsOrder) {
  GroupSave first = save(1, 2);
  GroupSave second = save(2, 2);
  std::promise<void> first_has_ended;
  second.may_commit = [&] { return first_has_ended.get_future().wait(), Result<void>(); };
  std::thread later([&] { expect_all_saved(second.run()); });
  expect_all_saved(first.run());
  EXPECT_EQ(checkpoint_in(*storage_), 1);
  first_has_ended.set_value();
  later.join();
  expect_only(2, 2);
}

TEST_F(RankSaves, LaterCommitOfTwoJobsWithdraws) {
  GroupSave group = save(1, 3);
  GroupSave other(opening(), 1, 0);
  group.may_commit = [&] {
    other.claim(save_number(5, {8, 8}));
    return expect_all_saved(other.run()), Result<void>();
  };
  expect_all_failed(group.run(), ErrorCode::kSuperseded, 0);
  expect_only(5, 1);
}

TEST_F(RankSaves, FailIfKilledBeforePublishing) {
  for (const int before : {0, 1}) {
    if (before == 1) save_well(1);
    bool killed = false;
    expect_all_failed(save_with_process(2, 1, dying(Moment::kBeforePublish), killed), ErrorCode::kUnavailable, 1);
    EXPECT_TRUE(killed);
    expect_only(before);
  }
}

TEST_F(RankSaves, SucceedIfKilledAfterPublishing) {
  for (const int number : {1, 2}) {
    bool killed = false;
    expect_all_saved(save_with_process(static_cast<std::uint64_t>(number), 1, dying(Moment::kAfterPublish), killed));
    EXPECT_TRUE(killed);
    expect_only(number);
  }
}

TEST_F(RankSaves, FailIfKilledBeforeTheRename) {
  for (const int before : {0, 1}) {
    if (before == 1) save_well(1);
    bool killed = false;
    const Reports reports = save_with_process(2, 0, dying(Moment::kBeforeCommit), killed);
    EXPECT_TRUE(killed);
    ASSERT_EQ(reports.size(), 2u);
    expect_all_failed(reports, ErrorCode::kUnavailable, 0);
    expect_only(before);
  }
}

TEST_F(RankSaves, SucceedIfKilledAfterTheRename) {
  for (const int number : {1, 2}) {
    bool killed = false;
    const Reports reports =
        save_with_process(static_cast<std::uint64_t>(number), 0, dying(Moment::kAfterCommit), killed);
    EXPECT_TRUE(killed);
    ASSERT_EQ(reports.size(), 2u);
    expect_all_saved(reports);
    expect_only(number);
  }
}

// A writer dies at each operation in turn: the other ranks agree on the outcome, and the next save removes the
// leftovers.
TEST_F(RankSaves, SurviveAWritersDeathAnywhere) {
  save_well(1);
  std::uint64_t number = 1;
  for (const std::uint32_t rank : {0u, 1u}) {
    bool killed = true;
    for (int operation = 0; killed; ++operation) {
      SCOPED_TRACE(testing::Message() << "rank=" << rank << " operation=" << operation);
      const int before = static_cast<int>(number);
      const Reports reports = save_with_process(++number, rank, dying(Moment::kAtOperation, operation), killed);
      const int found = checkpoint_in(*storage_);
      const bool saved = !reports.empty() && reports.front().has_value();
      for (const auto& report : reports) EXPECT_EQ(report.has_value(), saved);
      EXPECT_EQ(found, saved ? static_cast<int>(number) : before);
      save_well(++number);
      expect_only(static_cast<int>(number));
    }
  }
}

// A power cut stops all writers at once, at each operation of each writer in turn.
TEST(RankSaveFaults, PowerCutLeavesOldOrNew) {
  for (std::uint64_t crash_at = 0;; ++crash_at) {
    SCOPED_TRACE(testing::Message() << "crash_at=" << crash_at);
    ModelStorage disk;
    const auto save_on = [&disk](std::uint64_t number) -> Reports {
      GroupSave group([&disk] { return ModelStorage::view_of(disk); }, 3, 0);
      group.options.write.interrupted = [&] { return number == 2 && disk.fault_fired(); };
      try {
        group.claim(save_number(number));
      } catch (const Error& error) {
        return {error};
      }
      return group.run();
    };
    expect_all_saved(save_on(1));
    disk.crash_at(disk.operation_count() + crash_at);
    const Reports reports = save_on(2);
    const bool crashed = disk.fault_fired();
    disk.lose_power(crash_at);
    const int found = checkpoint_in(disk);
    const bool saved = std::any_of(reports.begin(), reports.end(), [](const auto& report) { return bool(report); });
    EXPECT_TRUE(found == 2 || (!saved && found == 1)) << found;
    expect_all_saved(save_on(3));
    EXPECT_EQ(checkpoint_in(disk), 3);
    if (!crashed) break;  // the loop has covered every operation
  }
}

TEST(RankSaveFaults, RanksAgreeOnAFailedOperation) {
  for (std::uint64_t number = 0;; ++number) {
    SCOPED_TRACE(testing::Message() << "number=" << number);
    ModelStorage disk;
    const auto save_on = [&disk](std::uint64_t save) -> Reports {
      GroupSave group([&disk] { return ModelStorage::view_of(disk); }, 3, 0);
      try {
        group.claim(save_number(save));
      } catch (const Error& error) {
        return {error};
      }
      return group.run();
    };
    expect_all_saved(save_on(1));
    disk.fail_at(disk.operation_count() + number, Error::from_errno(EIO, "injected"));
    const Reports reports = save_on(2);
    const bool fired = disk.fault_fired();
    const auto saved = std::count_if(reports.begin(), reports.end(), [](const auto& report) { return bool(report); });
    const int found = checkpoint_in(disk);
    EXPECT_TRUE(found == 2 || (saved == 0 && found == 1)) << found;
    EXPECT_TRUE(saved == 0 || saved == 3) << saved;
    if (!fired) break;
  }
}

TEST(RankSaveFaults, CoordinatorRunsOutOfMemory) {
  for (int number = 0;; ++number) {
    SCOPED_TRACE(testing::Message() << "number=" << number);
    ModelStorage disk;
    std::atomic<int> operations_left{-1};
    const auto save_on = [&](std::uint64_t save) {
      GroupSave group([&disk] { return ModelStorage::view_of(disk); }, 3, 0);
      group.claim_by(
          [&] { return std::make_unique<storage::ThrowingStorage>(ModelStorage::view_of(disk), operations_left); },
          save_number(save));
      if (save == 2) operations_left = number;
      return group.run();
    };
    expect_all_saved(save_on(1));
    const Reports reports = save_on(2);
    const auto saved = std::count_if(reports.begin(), reports.end(), [](const auto& report) { return bool(report); });
    const int found = checkpoint_in(disk);
    EXPECT_TRUE(found == 2 || (saved == 0 && found == 1)) << found;
    EXPECT_TRUE(saved == 0 || saved == 3) << saved;
    if (operations_left >= 0) break;  // the loop has covered every operation
  }
}

}  // namespace
}  // namespace cairn::commit

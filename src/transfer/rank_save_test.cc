// Asynchronous saves by several ranks, which meet in a real directory: as threads, and as processes that are killed.
#include "transfer/rank_save.h"

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

#include "format/manifest/trailer.h"
#include "storage/posix/posix_storage.h"
#include "storage/testing/dying_storage.h"
#include "storage/testing/full_storage.h"
#include "storage/testing/model_storage.h"
#include "storage/testing/scratch_directory.h"
#include "storage/testing/throwing_storage.h"
#include "storage/testing/view_storage.h"

namespace cairn::transfer {
namespace {

using namespace std::chrono_literals;
using storage::ModelStorage;
using storage::PosixStorage;
using storage::Storage;

constexpr SaveId kJob{7, 7};

SaveIdentity save_number(std::uint64_t number, SaveId job = kJob) { return {{job.high, number}, job, number}; }

// What a rank saves: a tensor of its own.
class RankBytes {
 public:
  RankBytes(const SaveTicket& ticket, std::uint32_t rank, std::uint32_t count)
      : values_(10'000 + 100 * rank, static_cast<float>(ticket.identity.save_number)) {
    const auto size = static_cast<std::int64_t>(values_.size());
    EXPECT_TRUE(state_.add_tensor(Path{"t", std::to_string(rank)},
                                  TensorView::contiguous(values_.data(), DType::kFloat32, {size})));
    const Entry& entry = state_.entries().front();
    ItemSource source;
    source.entry = &entry;
    source.tensor = std::get_if<TensorEntry>(&entry.content);
    image_ = FileImage::make({ticket.identity.save_id, rank, 0, count}, std::array{source}).value();
    name_ = data_file_name(ticket, rank, 0);
  }

  std::vector<ImageFile> files() const { return {{name_, &*image_}}; }
  const std::string& name() const { return name_; }

 private:
  std::vector<float> values_;
  StateDict state_;
  std::optional<FileImage> image_;
  std::string name_;
};

CommitDuty duty_of(const SaveTicket& ticket, std::uint32_t count) {
  CommitDuty duty{"pickle", {}};
  for (std::uint32_t rank = 0; rank < count; ++rank) duty.files.push_back({RankBytes(ticket, rank, count).name()});
  return duty;
}

// The number of the save that is in place, all of it; 0: none; -1: broken.
int checkpoint_in(const Storage& storage) {
  const auto now = read_metadata_in_place(storage);
  if (!now || (now->present && !now->record)) return -1;
  if (!now->present) return 0;
  for (const auto& file : now->record->files) {
    const auto opened = storage.open(file.name, false);
    if (!opened || (*opened)->size() != file.size) return -1;
    const auto trailer = manifest::read_trailer(**opened);
    if (!trailer || !*trailer || (*trailer)->save_id() != now->record->save_id) return -1;
    if ((*trailer)->checksum() != file.trailer_checksum) return -1;
  }
  return static_cast<int>(now->record->save_number);
}

std::size_t names_in(const Storage& storage) { return storage.list().value().size(); }

using Reports = std::vector<Result<RankSaveReport>>;
using Opening = std::function<std::unique_ptr<Storage>()>;

// One save by `count` ranks. What a test is about it changes before run().
class Together {
 public:
  Together(Opening opening, std::uint32_t count, std::uint32_t coordinator)
      : opening_(std::move(opening)), count_(count), coordinator_(coordinator) {
    options.write.thread_count = 1;
  }

  // What the coordinator's process does, and what the others are told.
  void claim(const SaveIdentity& identity) { claim_by(opening_, identity); }
  // The coordinator alone opens the directory in its own way.
  void claim_by(const Opening& opening, const SaveIdentity& identity) {
    claimed_ = RankSave::claim(opening(), identity, coordinator_).value();
    come_with(claimed_->ticket());
  }
  void come_with(const SaveTicket& ticket) {
    ticket_ = ticket;
    duty_ = duty_of(ticket, count_);
  }

  const SaveTicket& ticket() const { return ticket_; }
  const CommitDuty& duty() const { return duty_; }
  const std::string& name_of(std::uint32_t rank) const { return duty_.files[rank].front(); }

  // In place of what a rank would do, once it has entered; and in place of how it would open the directory.
  using Deed = std::function<Result<RankSaveReport>(RankSave&)>;
  std::map<std::uint32_t, Deed> instead = {};
  std::map<std::uint32_t, Opening> opened_by = {};
  RankSaveOptions options = {};
  std::function<void()> may_commit = {};

  Result<RankSaveReport> finish(RankSave& save, std::uint32_t rank) const {
    const RankBytes bytes(ticket_, rank, count_);
    if (rank != coordinator_) return save.finish(bytes.files(), std::nullopt, options);
    return save.finish(bytes.files(), duty_, options, may_commit);
  }

  Result<RankSaveReport> run_rank(std::uint32_t rank) {
    const Opening& opening = opened_by.contains(rank) ? opened_by[rank] : opening_;
    auto save = rank == coordinator_ ? std::move(claimed_) : RankSave::join(opening(), ticket_);
    CAIRN_TRY(save->enter({rank, count_, coordinator_}));
    if (instead.contains(rank)) return instead[rank](*save);
    Result<RankSaveReport> report = finish(*save, rank);
    EXPECT_EQ(save->progress().phase, SaveProgress::Phase::kEnded);
    if (report) EXPECT_EQ(save->progress().bytes_written, save->progress().bytes_total);
    return report;
  }

  // `absent` ranks do nothing at all here.
  Reports run(const std::vector<std::uint32_t>& absent = {}) {
    Reports reports(count_, Error(ErrorCode::kInternal, "absent"));
    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank < count_; ++rank) {
      if (std::find(absent.begin(), absent.end(), rank) != absent.end()) continue;
      threads.emplace_back([&, rank] { reports[rank] = run_rank(rank); });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::uint32_t rank : absent) reports.erase(reports.begin() + rank);
    return reports;
  }

 private:
  Opening opening_;
  std::uint32_t count_;
  std::uint32_t coordinator_;
  std::unique_ptr<RankSave> claimed_;
  SaveTicket ticket_;
  CommitDuty duty_;
};

void expect_all_saved(const Reports& reports) {
  for (const auto& report : reports) {
    ASSERT_TRUE(report) << report.error().what();
    EXPECT_TRUE(report->warnings.empty());
    EXPECT_GT(report->bytes_written, 40'000u);
  }
}

// All failed, with the same error, in which `rank` is the first to blame.
void expect_all_failed(const Reports& reports, ErrorCode code, std::uint32_t rank) {
  for (const auto& report : reports) {
    ASSERT_FALSE(report);
    EXPECT_EQ(report.error().code(), code) << report.error().what();
    EXPECT_EQ(report.error().rank(), rank) << report.error().what();
    EXPECT_FALSE(report.error().causes().empty());
    EXPECT_STREQ(report.error().what(), reports.front().error().what());
  }
}

using storage::DyingStorage;
using Moment = DyingStorage::Moment;

// A process of its own; its death is waited for.
class Process {
 public:
  explicit Process(const std::function<void()>& work) : pid_(fork()) {
    if (pid_ != 0) return;
    work();
    _exit(0);
  }
  // Whether it was killed, as opposed to came to its end.
  bool was_killed() {
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    return WIFSIGNALED(status);
  }

 private:
  pid_t pid_;
};

class RankSaves : public testing::Test {
 protected:
  RankSaves() : storage_(open()) {}
  std::unique_ptr<Storage> open() const { return PosixStorage::open_directory(directory_.path()).value(); }
  Opening opening() const {
    return [this] { return open(); };
  }
  Together save(std::uint64_t number, std::uint32_t count, std::uint32_t coordinator = 0) const {
    Together together(opening(), count, coordinator);
    together.claim(save_number(number));
    return together;
  }
  void save_well(std::uint64_t number, std::uint32_t count = 3) const { expect_all_saved(save(number, count).run()); }
  // The checkpoint of the save is there, and nothing beside it.
  void expect_only(int number, std::size_t files = 3) const {
    EXPECT_EQ(checkpoint_in(*storage_), number);
    EXPECT_EQ(names_in(*storage_), number == 0 ? 0 : files + 1);
  }
  Opening dying(Moment moment, int operation = -1) const {
    return [this, moment, operation] { return std::make_unique<DyingStorage>(open(), moment, operation); };
  }
  // Three ranks save; that one is a process that dies at that moment, or not at all. The reports of the others.
  Reports save_with_process(std::uint64_t number, std::uint32_t rank, const Opening& opening, bool& killed) const;

  storage::ScratchDirectory directory_;
  std::unique_ptr<Storage> storage_;
};

Reports RankSaves::save_with_process(std::uint64_t number, std::uint32_t rank, const Opening& opening,
                                     bool& killed) const {
  if (rank != 0) {
    Together together = save(number, 3);
    together.options.deadline = 300ms;  // for one that dies before it has a lease
    Process process([&] {
      together.opened_by[rank] = opening;
      (void)together.run_rank(rank);
    });
    Reports reports = together.run({rank});
    killed = process.was_killed();
    return reports;
  }
  std::array<int, 2> ends{};
  EXPECT_EQ(pipe(ends.data()), 0);
  Process process([&] {
    Together together(opening, 3, 0);
    together.claim(save_number(number));
    const std::string ticket = encode_ticket(together.ticket());
    EXPECT_EQ(write(ends[1], ticket.data(), ticket.size()), static_cast<ssize_t>(ticket.size()));
    (void)together.run_rank(0);
  });
  close(ends[1]);
  std::string ticket(256, '\0');
  const ssize_t length = read(ends[0], ticket.data(), ticket.size());
  close(ends[0]);
  Reports reports;
  if (length > 0) {  // else it died before anybody was asked to save
    Together others(this->opening(), 3, 0);
    others.come_with(decode_ticket(ticket.substr(0, static_cast<std::size_t>(length))).value());
    reports = others.run({0});
  }
  killed = process.was_killed();
  return reports;
}

TEST_F(RankSaves, AloneIsCommitted) {
  save_well(1, 1);
  expect_only(1, 1);
  save_well(2, 1);
  expect_only(2, 1);
}

TEST_F(RankSaves, TogetherAreCommittedWhoeverCoordinates) {
  int number = 0;
  for (const std::uint32_t coordinator : {0u, 2u, 1u}) {
    expect_all_saved(save(static_cast<std::uint64_t>(++number), 3, coordinator).run());
    expect_only(number);
  }
}

TEST_F(RankSaves, FailOnAllIfOneHasNoBytes) {
  for (const int before : {0, 1}) {
    if (before == 1) save_well(1);
    Together together = save(2, 3);
    together.instead[2] = [](RankSave& save) -> Result<RankSaveReport> {
      const Error reason = Error(ErrorCode::kInvalidArgument, "no bytes today").rank(2).attachment("ticket");
      save.abandon(reason);
      return Error::of_ranks({reason});
    };
    const Reports reports = together.run();
    expect_all_failed(reports, ErrorCode::kInvalidArgument, 2);
    EXPECT_EQ(reports[1].error().causes()[0].attachment(), "ticket");
    expect_only(before);
  }
}

TEST_F(RankSaves, FailOnAllIfOneIsDropped) {
  save_well(1);
  Together together = save(2, 3);
  together.instead[1] = [](RankSave&) -> Result<RankSaveReport> {
    return Error::of_ranks({Error(ErrorCode::kCancelled, "the save was given up before it had ended").rank(1)});
  };
  expect_all_failed(together.run(), ErrorCode::kCancelled, 1);
  expect_only(1);
}

TEST_F(RankSaves, FailOnAllIfTheCoordinatorHasNoBytes) {
  save_well(1);
  Together together = save(2, 3, 1);
  std::latch others_have_entered(2);
  for (const std::uint32_t rank : {0u, 2u}) {
    together.instead[rank] = [&, rank](RankSave& save) {
      others_have_entered.count_down();
      return together.finish(save, rank);
    };
  }
  together.instead[1] = [&](RankSave& save) -> Result<RankSaveReport> {
    others_have_entered.wait();
    const Error reason = Error(ErrorCode::kInvalidArgument, "no bytes today").rank(1);
    save.abandon(reason);
    return Error::of_ranks({reason});
  };
  expect_all_failed(together.run(), ErrorCode::kInvalidArgument, 1);
  expect_only(1);
}

TEST_F(RankSaves, NameTheCoordinatorThatGivesUpBeforeItHasEntered) {
  auto coordinator = RankSave::claim(open(), save_number(1), 1).value();
  const auto save = RankSave::join(open(), coordinator->ticket());
  ASSERT_TRUE(save->enter({0, 2, 1}));
  std::jthread giving_up([&] { coordinator->abandon(Error(ErrorCode::kInvalidArgument, "no plan today")); });
  const auto report = save->finish(RankBytes(save->ticket(), 0, 2).files(), std::nullopt, {});
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().message(), "no plan today");
  EXPECT_EQ(report.error().rank(), 1) << report.error().what();
}

// A file of somebody else has the name that the rank wants.
TEST_F(RankSaves, FailOnAllIfOneCannotPublish) {
  for (const std::uint32_t rank : {0u, 2u}) {
    Together together = save(1, 3);
    ASSERT_TRUE(storage_->create_whole(together.name_of(rank), "others", Durability::kBuffered));
    const Reports reports = together.run();
    expect_all_failed(reports, ErrorCode::kUnavailable, rank);
    EXPECT_EQ(reports[0].error().error_number(), EEXIST);
    EXPECT_EQ(names_in(*storage_), 1u);
    ASSERT_TRUE(storage_->remove(together.name_of(rank)));
  }
}

TEST_F(RankSaves, HearOfAFailureThatHasNoRoomForItsReason) {
  save_well(1);
  Together together = save(2, 3);
  together.opened_by[1] = [this] { return std::make_unique<storage::FullStorage>(open()); };
  expect_all_failed(together.run(), ErrorCode::kUnavailable, 1);
  expect_only(1);
}

TEST_F(RankSaves, TellARankThatComesWhenTheSaveHasFailed) {
  save_well(1);
  Together together = save(2, 3);
  ASSERT_TRUE(storage_->create_whole(together.name_of(0), "others", Durability::kBuffered));
  // The last rank comes when the verdict can be read.
  together.opened_by[2] = [&, failed = folder_of(together.ticket().identity.save_id) + "/failed"] {
    while (!storage_->open(failed, false)) std::this_thread::yield();
    return open();
  };
  expect_all_failed(together.run(), ErrorCode::kUnavailable, 0);
  ASSERT_TRUE(storage_->remove(together.name_of(0)));
  expect_only(1);
}

TEST_F(RankSaves, HearAVerdictThatHasNoRoomAtFirst) {
  save_well(1);
  Together together([this] { return std::make_unique<storage::StorageThatGetsRoom>(open()); }, 3, 0);
  together.claim(save_number(2));
  together.opened_by[1] = [this] { return std::make_unique<storage::FullStorage>(open()); };
  expect_all_failed(together.run(), ErrorCode::kUnavailable, 1);
  expect_only(1);
}

TEST_F(RankSaves, FailIfOneNeverTakesPart) {
  save_well(1);
  Together together = save(2, 3);
  together.options.deadline = 300ms;
  const Reports reports = together.run({2});
  expect_all_failed(reports, ErrorCode::kUnavailable, 2);
  expect_only(1);
}

TEST_F(RankSaves, RefuseARankThatSeesAnotherDirectory) {
  storage::ScratchDirectory elsewhere;
  Together together = save(1, 3);
  together.options.deadline = 300ms;
  together.opened_by[1] = [&] { return PosixStorage::open_directory(elsewhere.path()).value(); };
  const Reports reports = together.run();
  for (const auto& report : reports) ASSERT_FALSE(report);
  EXPECT_NE(reports[1].error().message().find("need one that all see"), std::string::npos);
  expect_all_failed({reports[0], reports[2]}, ErrorCode::kUnavailable, 1);
  expect_only(0);
  EXPECT_TRUE(std::filesystem::is_empty(elsewhere.path()));
}

TEST_F(RankSaves, StopWhenOneIsInterrupted) {
  save_well(1);
  for (const std::uint32_t rank : {0u, 2u}) {
    Together together = save(2, 3);
    // It writes its files, and then never sees the others' because one of them is late.
    std::promise<void> rank_1_may_go_on;
    together.instead[1] = [&](RankSave& save) {
      rank_1_may_go_on.get_future().wait();
      return together.finish(save, 1);
    };
    together.instead[rank] = [&, rank](RankSave& save) {
      const RankBytes bytes(together.ticket(), rank, 3);
      RankSaveOptions options = together.options;
      options.write.interrupted = [&] { return save.progress().phase == SaveProgress::Phase::kWaiting; };
      const std::optional<CommitDuty> duty = rank == 0 ? std::optional(together.duty()) : std::nullopt;
      Result<RankSaveReport> report = save.finish(bytes.files(), duty, options);
      rank_1_may_go_on.set_value();
      return report;
    };
    const Reports reports = together.run();
    for (const auto& report : reports) {
      ASSERT_FALSE(report);
      EXPECT_EQ(report.error().rank(), rank) << report.error().what();
    }
    EXPECT_EQ(reports[rank].error().code(), ErrorCode::kCancelled);
    expect_only(1);
  }
}

TEST_F(RankSaves, OfOneJobAreCommittedInTheirOrder) {
  Together first = save(1, 2);
  Together second = save(2, 2);
  std::promise<void> first_has_ended;
  second.may_commit = [&] { first_has_ended.get_future().wait(); };
  std::thread later([&] { expect_all_saved(second.run()); });
  expect_all_saved(first.run());
  EXPECT_EQ(checkpoint_in(*storage_), 1);
  first_has_ended.set_value();
  later.join();
  expect_only(2, 2);
}

TEST_F(RankSaves, OfTwoJobsTheLaterToCommitWithdraws) {
  Together together = save(1, 3);
  Together other(opening(), 1, 0);
  together.may_commit = [&] {
    other.claim(save_number(5, {8, 8}));
    expect_all_saved(other.run());
  };
  expect_all_failed(together.run(), ErrorCode::kSuperseded, 0);
  expect_only(5, 1);
}

TEST_F(RankSaves, FailIfAWriterIsKilledBeforeItPublishes) {
  for (const int before : {0, 1}) {
    if (before == 1) save_well(1);
    bool killed = false;
    expect_all_failed(save_with_process(2, 1, dying(Moment::kBeforePublish), killed), ErrorCode::kUnavailable, 1);
    EXPECT_TRUE(killed);
    expect_only(before);
  }
}

TEST_F(RankSaves, AreCommittedIfAWriterIsKilledAfterItPublished) {
  for (const int number : {1, 2}) {
    bool killed = false;
    expect_all_saved(save_with_process(static_cast<std::uint64_t>(number), 1, dying(Moment::kAfterPublish), killed));
    EXPECT_TRUE(killed);
    expect_only(number);
  }
}

TEST_F(RankSaves, FailIfTheCoordinatorIsKilledBeforeItsRename) {
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

TEST_F(RankSaves, AreCommittedIfTheCoordinatorIsKilledAfterItsRename) {
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

// The first sync of the directory that finds the save `number` in place fails, as a kernel reports an error once.
class UnsyncedCommit final : public storage::ViewStorage {
 public:
  UnsyncedCommit(std::unique_ptr<Storage> storage, int number)
      : ViewStorage(*storage), storage_(std::move(storage)), number_(number) {}
  Result<void> sync(std::string_view folder) override {
    if (folder.empty() && checkpoint_in(*storage_) == number_ && !std::exchange(failed_, true)) {
      return Error::from_errno(EIO, "syncing the directory");
    }
    return ViewStorage::sync(folder);
  }

 private:
  std::unique_ptr<Storage> storage_;
  int number_;
  bool failed_ = false;
};

TEST_F(RankSaves, KeepBothCheckpointsIfNobodyCanSyncTheCommitOfADeadCoordinator) {
  save_well(1);
  const auto old_files = read_metadata_in_place(*storage_).value().record->files;
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  Process coordinator([&] {
    Together together(dying(Moment::kAfterCommit), 3, 0);
    together.claim(save_number(2));
    const std::string ticket = encode_ticket(together.ticket());
    EXPECT_EQ(write(ends[1], ticket.data(), ticket.size()), static_cast<ssize_t>(ticket.size()));
    (void)together.run_rank(0);
  });
  std::string ticket(256, '\0');
  ticket.resize(static_cast<std::size_t>(read(ends[0], ticket.data(), ticket.size())));
  close(ends[0]);
  close(ends[1]);
  Together others([this] { return std::make_unique<UnsyncedCommit>(open(), 2); }, 3, 0);
  others.come_with(decode_ticket(ticket).value());
  const Reports reports = others.run({0});
  EXPECT_TRUE(coordinator.was_killed());
  for (const auto& report : reports) EXPECT_FALSE(report);
  EXPECT_EQ(checkpoint_in(*storage_), 2);
  for (const auto& file : old_files) EXPECT_TRUE(storage_->open(file.name, false)) << file.name;
  save_well(3);
  expect_only(3);
}

// Whichever operation a writer dies at: the others agree on what became of the save, and the next one removes what is
// left.
TEST_F(RankSaves, SurviveTheDeathOfAWriterAtAnyOperation) {
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

// The power goes, for all writers at once, at any operation of any of them.
TEST(RankSavesOnAModel, LeaveTheOldOrTheNewCheckpointAfterAPowerCut) {
  for (std::uint64_t crash_at = 0;; ++crash_at) {
    SCOPED_TRACE(testing::Message() << "crash_at=" << crash_at);
    ModelStorage disk;
    const auto save_on = [&disk](std::uint64_t number) -> Reports {
      Together together([&disk] { return ModelStorage::view_of(disk); }, 3, 0);
      together.options.write.interrupted = [&] { return number == 2 && disk.fault_fired(); };
      try {
        together.claim(save_number(number));
      } catch (const Error& error) {
        return {error};
      }
      return together.run();
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
    if (!crashed) break;  // the loop covered every operation
  }
}

TEST(RankSavesOnAModel, AgreeWhateverOperationFails) {
  for (std::uint64_t number = 0;; ++number) {
    SCOPED_TRACE(testing::Message() << "number=" << number);
    ModelStorage disk;
    const auto save_on = [&disk](std::uint64_t save) -> Reports {
      Together together([&disk] { return ModelStorage::view_of(disk); }, 3, 0);
      try {
        together.claim(save_number(save));
      } catch (const Error& error) {
        return {error};
      }
      return together.run();
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

TEST(RankSavesOnAModel, LoseNothingAndAgreeWheneverTheCoordinatorRunsOutOfMemory) {
  for (int number = 0;; ++number) {
    SCOPED_TRACE(testing::Message() << "number=" << number);
    ModelStorage disk;
    std::atomic<int> operations_left{-1};
    const auto save_on = [&](std::uint64_t save) {
      Together together([&disk] { return ModelStorage::view_of(disk); }, 3, 0);
      together.claim_by(
          [&] { return std::make_unique<storage::ThrowingStorage>(ModelStorage::view_of(disk), operations_left); },
          save_number(save));
      if (save == 2) operations_left = number;
      return together.run();
    };
    expect_all_saved(save_on(1));
    const Reports reports = save_on(2);
    const auto saved = std::count_if(reports.begin(), reports.end(), [](const auto& report) { return bool(report); });
    const int found = checkpoint_in(disk);
    EXPECT_TRUE(found == 2 || (saved == 0 && found == 1)) << found;
    EXPECT_TRUE(saved == 0 || saved == 3) << saved;
    if (operations_left >= 0) break;  // the loop covered every operation
  }
}

}  // namespace
}  // namespace cairn::transfer

// Asynchronous saves by several ranks. The sync of the directory after the commit fails, or an attacker replaces the
// private folder.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <latch>
#include <memory>
#include <thread>

#include "commit/lease_watch.h"
#include "commit/meeting/save_marks.h"
#include "commit/testing/rank_saves.h"
#include "storage/testing/blocking_storage.h"
#include "storage/testing/view_storage.h"

namespace cairn::commit {
namespace {

using storage::Blockade;
using storage::BlockingStorage;

// The first sync of the directory after the commit of save `number` fails. Later syncs succeed: a kernel reports a
// write error once.
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

TEST_F(RankSaves, KeepBothIfTheCommitIsUnsynced) {
  save_well(1);
  const auto old_files = read_metadata_in_place(*storage_).value().record->files;
  TicketPipe tickets;
  Process coordinator([&] {
    GroupSave group(dying(Moment::kAfterCommit), 3, 0);
    group.claim(save_number(2));
    tickets.send(group.ticket());
    (void)group.run_rank(0);
  });
  const std::optional<SaveTicket> ticket = tickets.receive();
  ASSERT_TRUE(ticket);
  GroupSave others([this] { return std::make_unique<UnsyncedCommit>(open(), 2); }, 3, 0);
  others.come_with(*ticket);
  const Reports reports = others.run({0});
  EXPECT_TRUE(coordinator.was_killed());
  for (const auto& report : reports) EXPECT_FALSE(report);
  EXPECT_EQ(checkpoint_in(*storage_), 2);
  for (const auto& file : old_files) EXPECT_TRUE(storage_->open(file.name, false)) << file.name;
  save_well(3);
  expect_only(3);
}

constexpr uid_t kOtherUser = 54321;

// Puts an attacker's folder in place of the folder of save `number`, with a `committed` mark in the folder.
void replace_folder_as_other_user(const std::filesystem::path& directory, std::uint64_t number) {
  const std::string folder = folder_of(save_number(number).save_id);
  std::filesystem::rename(directory / folder, directory / "stolen");
  const auto storage = PosixStorage::open_directory(directory).value();
  ASSERT_TRUE(storage->make_folder(folder));
  ASSERT_TRUE(SaveMarks(*storage, save_number(number).save_id).write_decision({}));
  ASSERT_EQ(chown((directory / folder).c_str(), kOtherUser, kOtherUser), 0);
}

TEST_F(RankSaves, FailIfAUserReplacesTheFolder) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to make a folder of another user";
  save_well(1);
  GroupSave group = save(2, 3);
  std::latch entered(3);
  std::latch replaced(1);
  for (const std::uint32_t rank : {0u, 1u, 2u}) {
    group.instead[rank] = [&, rank](RankSave& save) {
      entered.arrive_and_wait();
      if (rank == 0) {
        replace_folder_as_other_user(directory_.path(), 2);
        replaced.count_down();
      }
      replaced.wait();
      return group.finish(save, rank);
    };
  }
  const Reports reports = group.run();
  for (const auto& report : reports) {
    ASSERT_FALSE(report);
    EXPECT_EQ(report.error().code(), ErrorCode::kUnsafe) << report.error().what();
  }
  std::filesystem::remove_all(directory_.path() / "stolen");
  std::filesystem::remove_all(directory_.path() / folder_of(save_number(2).save_id));
  expect_only(1);
}

// The rank looks for the decision while it writes.
TEST_F(RankSaves, FailAWriteAsItsFolderGoes) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to make a folder of another user";
  const auto coordinator = RankSave::claim(open(), save_number(1), 0).value();
  ASSERT_TRUE(coordinator->enter({0, 2, 0}));
  const auto blockade = std::make_shared<Blockade>();
  blockade->block(Blockade::Call::kWrite);
  const auto save = RankSave::join(std::make_unique<BlockingStorage>(open(), blockade), coordinator->ticket());
  ASSERT_TRUE(save->enter({1, 2, 0}));
  const std::jthread attacker([&] {
    blockade->await_hanging();
    replace_folder_as_other_user(directory_.path(), 1);
    std::this_thread::sleep_for(5 * kLivenessInterval);
    blockade->release();
  });
  RankSaveOptions options;
  options.write.thread_count = 1;
  options.write.interrupted = [] { return false; };
  const auto report = save->finish(RankBytes(coordinator->ticket(), 1, 2).files(), std::nullopt, options);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code(), ErrorCode::kUnsafe) << report.error().what();
}

TEST_F(RankSaves, EnterNoFolderOfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to make a folder of another user";
  const auto coordinator = RankSave::claim(open(), save_number(1), 0).value();
  replace_folder_as_other_user(directory_.path(), 1);
  const auto late = RankSave::join(open(), coordinator->ticket());
  const auto entered = late->enter({1, 2, 0});
  ASSERT_FALSE(entered);
  EXPECT_EQ(entered.error().code(), ErrorCode::kUnsafe);
  EXPECT_FALSE(std::filesystem::exists(directory_.path() / folder_of(save_number(1).save_id) / "lease-1"));
}

}  // namespace
}  // namespace cairn::commit

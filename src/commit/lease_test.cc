// Leases of processes on foreign hosts, with a difference between the storage's clock and the host's clock.
#include "commit/lease.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <semaphore>
#include <string>
#include <string_view>

#include "commit/dead_saves.h"
#include "commit/leftovers.h"
#include "commit/save_transaction.h"
#include "storage/posix/posix_storage.h"
#include "storage/testing/model_storage.h"
#include "storage/testing/scratch_directory.h"
#include "storage/testing/view_storage.h"

namespace cairn::commit {
namespace {

using storage::PosixStorage;

// A directory of a file server. The server's clock is `skew` ahead of the host's clock.
class ServerDirectory {
 public:
  explicit ServerDirectory(std::chrono::seconds skew) : skew_(skew) {}

  const storage::Storage& storage() const { return view_; }
  storage::Storage& storage() { return view_; }

  // Makes the folder of a save by a process of another host. The last heartbeat is `age` old.
  std::string make_foreign_save(std::uint64_t number, std::chrono::seconds age) {
    const std::string folder = folder_of({1, number});
    EXPECT_TRUE(view_.make_folder(folder));
    const std::string text = "cairn-lease 1\nsave " + to_hex(SaveId{1, number}) + "\njob " + to_hex(SaveId{1, 1}) +
                             "\nnumber 1\nhost elsewhere\nboot b\nnamespace n\npid 7\nstart 1\n";
    EXPECT_TRUE(view_.create_whole(folder + "/lease", text, Durability::kBuffered));
    const auto lease = directory_.path() / folder / "lease";
    std::filesystem::last_write_time(lease, std::filesystem::last_write_time(lease) - age);
    return folder;
  }

 private:
  class SkewedStorage final : public storage::ViewStorage {
   public:
    SkewedStorage(storage::Storage& storage, std::chrono::seconds skew) : ViewStorage(storage), skew_(skew) {}
    Result<double> touched_at(std::string_view name) const override {
      CAIRN_TRY_ASSIGN(const double time, ViewStorage::touched_at(name));
      return time + static_cast<double>(skew_.count());
    }

   private:
    std::chrono::seconds skew_;
  };

  std::chrono::seconds skew_;
  storage::ScratchDirectory directory_;
  std::unique_ptr<storage::Storage> disk_ = PosixStorage::open_directory(directory_.path()).value();
  SkewedStorage view_{*disk_, skew_};
};

class Leases : public testing::TestWithParam<int> {};

TEST_P(Leases, AreJudgedByTheStoragesClock) {
  ServerDirectory directory{std::chrono::minutes(GetParam())};
  const std::string living = directory.make_foreign_save(1, std::chrono::seconds(10));
  const std::string dead = directory.make_foreign_save(2, std::chrono::minutes(6));
  const auto lease = Lease::take_with_folder(directory.storage(), {{2, 2}, {2, 1}, 1});
  ASSERT_TRUE(lease);
  clean_up(directory.storage(), {2, 2}, {}, {}, LeakedFiles::kRemove);
  const auto is_there = [&](const std::string& folder) { return directory.storage().list(folder).has_value(); };
  EXPECT_TRUE(is_there(living));
  EXPECT_FALSE(is_there(dead));
}

TEST_P(Leases, CleanUpJudgesByStoragesClock) {
  ServerDirectory directory{std::chrono::minutes(GetParam())};
  const std::string living = directory.make_foreign_save(1, std::chrono::seconds(10));
  const std::string dead = directory.make_foreign_save(2, std::chrono::minutes(6));
  ASSERT_TRUE(clean_up_after(directory.storage(), {1, 1}));
  ASSERT_TRUE(clean_up_after(directory.storage(), {1, 2}));
  ASSERT_TRUE(directory.storage().list(living));
  EXPECT_EQ(directory.storage().list(living)->size(), 1u);
  EXPECT_FALSE(directory.storage().list(dead));
}

TEST_P(Leases, LivingSavesOutliveAPrune) {
  ServerDirectory directory{std::chrono::minutes(GetParam())};
  const std::string living = directory.make_foreign_save(1, std::chrono::seconds(10));
  const auto removed = remove_dead_saves(directory.storage(), Removal::kDo);
  ASSERT_TRUE(removed) << removed.error().what();
  ASSERT_TRUE(directory.storage().list(living));
  EXPECT_EQ(directory.storage().list(living)->size(), 1u);
}

TEST(Lease, IgnoresUnknownLines) {
  storage::ModelStorage disk;
  const std::string text = "cairn-lease 1\nsave " + to_hex(SaveId{1, 2}) + "\nhost elsewhere\npid 7\nstart 1\n" +
                           encode_progress_line({SavePhase::kWriting, 5, 7, {}}) + "a new line\nwith a later name\n";
  ASSERT_TRUE(disk.create_whole("lease", text, Durability::kBuffered));
  const auto holder = read_lease(disk, "lease");
  ASSERT_TRUE(holder && *holder);
  EXPECT_EQ((*holder)->identity.save_id, (SaveId{1, 2}));
  EXPECT_EQ((*holder)->process.host, "elsewhere");
  ASSERT_TRUE((*holder)->progress);
  EXPECT_EQ((*holder)->progress->bytes_written, 5u);
}

TEST(Lease, HasNoHolderIfANumberIsBad) {
  const std::string text = "cairn-lease 1\nnumber 1\nsince 5\npid 7\nstart 1\n";
  for (const char* bad : {"", "number x\n", "since x\n", "pid x\n", "start x\n"}) {
    storage::ModelStorage disk;
    ASSERT_TRUE(disk.create_whole("lease", text + bad, Durability::kBuffered));
    EXPECT_EQ(read_lease(disk, "lease").value().has_value(), std::string_view(bad).empty()) << bad;
  }
}

class CountedBeats final : public storage::ViewStorage {
 public:
  CountedBeats(storage::Storage& storage, std::counting_semaphore<>& beats) : ViewStorage(storage), beats_(beats) {}
  Result<void> touch(std::string_view name) override {
    beats_.release();
    return ViewStorage::touch(name);
  }

 private:
  std::counting_semaphore<>& beats_;
};

TEST(Lease, BeatsMoreThanOnce) {
  storage::ModelStorage disk;
  std::counting_semaphore<> beats(0);
  CountedBeats counted(disk, beats);
  const auto lease = Lease::take_file(counted, {{1, 2}, {1, 1}, 1}, "lease");
  ASSERT_TRUE(lease);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(beats.try_acquire_for(std::chrono::minutes(5)));
}

INSTANTIATE_TEST_SUITE_P(ByMinutesAhead, Leases, testing::Values(0, 10, -10),
                         [](const auto& tested) { return "Skew" + std::to_string(tested.index); });

}  // namespace
}  // namespace cairn::commit

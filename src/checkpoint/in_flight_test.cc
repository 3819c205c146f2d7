#include <cairn/latest.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "commit/directory/new_directory.h"
#include "commit/lease.h"
#include "commit/meeting/save_marks.h"
#include "commit/testing/dead_lease.h"
#include "storage/open_directory.h"
#include "storage/testing/scratch_directory.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using State = SaveInFlightWriter::State;

constexpr SaveId kJob{7, 7};

class SavesInFlight : public testing::Test {
 protected:
  // The storage of a directory below the root, which is made.
  storage::Storage& directory(const std::string& name = "") {
    return *storages_.emplace_back(storage::make_directory(root_ / name).value());
  }
  // A save of this process, which goes on until the test ends.
  void begin(storage::Storage& storage, std::uint64_t number) {
    leases_.push_back(commit::Lease::take_with_folder(storage, {{1, number}, kJob, number}).value());
  }
  std::vector<SaveInFlight> saves() const {
    auto found = saves_in_flight(root_);
    EXPECT_TRUE(found) << found.error().what();
    return found ? *std::move(found) : std::vector<SaveInFlight>();
  }
  std::vector<std::uint64_t> numbers() const {
    std::vector<std::uint64_t> numbers;
    for (const SaveInFlight& save : saves()) numbers.push_back(save.save_number);
    return numbers;
  }

  storage::ScratchDirectory scratch_;
  fs::path root_ = scratch_.path() / "root";
  std::vector<std::unique_ptr<storage::Storage>> storages_;
  std::vector<commit::Lease> leases_;
};

// A save of torch_checkpointing, whose directory is not in place.
TEST_F(SavesInFlight, NameTheDirectoryOfAWholeSave) {
  commit::SaveIdentity identity{{1, 9}, kJob, 9};
  identity.form = commit::SaveForm::kDirectory;
  begin(directory("step-1"), 5);
  storage::Storage& made = directory(commit::name_of_new_directory({identity.save_id, "step-2"}));
  leases_.push_back(commit::Lease::take_with_folder(made, identity).value());
  for (const fs::path& root : {root_, root_ / "step-2", root_ / "step-2" / ""}) {
    const auto found = saves_in_flight(root);
    ASSERT_TRUE(found) << found.error().what();
    ASSERT_EQ(found->size(), root == root_ ? 2u : 1u);
    EXPECT_EQ(found->back().save_id, identity.save_id);
    EXPECT_EQ(found->back().save_number, 9u);
    EXPECT_EQ(found->back().directory, root_ / "step-2");
    EXPECT_EQ(found->back().writers.at(0).state, State::kAlive);
    EXPECT_FALSE(found->back().is_leftover);
    EXPECT_FALSE(latest(root, {.wait = std::chrono::milliseconds(1)}).value());
  }
  int looks = 0;
  const auto waiting = latest(root_, {.wait = std::chrono::hours(1), .interrupted = [&] { return ++looks == 3; }});
  ASSERT_FALSE(waiting) << "the wait ends only by the interruption";
  EXPECT_EQ(waiting.error().code(), ErrorCode::kCancelled);
  EXPECT_FALSE(saves_in_flight(root_ / "step-3"));
  commit::leave_dead_lease(made, commit::folder_of_save(identity));
  EXPECT_TRUE(saves_in_flight(root_ / "step-2")->at(0).is_leftover);
}

TEST_F(SavesInFlight, NameTheWriterOfALivingSave) {
  begin(directory(), 5);
  const auto found = saves();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].save_id, (SaveId{1, 5}));
  EXPECT_EQ(found[0].job_id, kJob);
  EXPECT_EQ(found[0].save_number, 5u);
  EXPECT_EQ(found[0].directory, root_);
  EXPECT_FALSE(found[0].is_leftover);
  EXPECT_EQ(found[0].decision, SaveInFlight::Decision::kNone);
  ASSERT_EQ(found[0].writers.size(), 1u);
  EXPECT_EQ(found[0].writers[0].rank, std::nullopt);
  EXPECT_EQ(found[0].writers[0].pid, getpid());
  EXPECT_EQ(found[0].writers[0].state, State::kAlive);
  EXPECT_GE(found[0].writers[0].seconds_since_sign, 0);
}

TEST_F(SavesInFlight, NameOtherRanksAndTheirFailures) {
  storage::Storage& storage = directory();
  begin(storage, 5);
  leases_.push_back(commit::Lease::take_as_rank(storage, {{1, 5}, kJob, 5}, 3).value());
  commit::SaveMarks marks(storage, {1, 5});
  ASSERT_TRUE(marks.write_failure(2, Error(ErrorCode::kNoSpace, "the disk is full")));
  const auto found = saves();
  ASSERT_EQ(found.size(), 1u);
  ASSERT_EQ(found[0].writers.size(), 2u);
  EXPECT_EQ(found[0].writers[0].rank, std::nullopt) << "the coordinator is the first";
  EXPECT_EQ(found[0].writers[1].rank, 3u);
  ASSERT_EQ(found[0].failures.size(), 1u);
  EXPECT_EQ(found[0].failures[0].rank(), 2u);
  EXPECT_EQ(found[0].failures[0].code(), ErrorCode::kNoSpace);
}

TEST_F(SavesInFlight, IncludeSavesOfModels) {
  storage::Storage& storage = directory("model");
  const commit::SaveIdentity identity{{1, 5}, kJob, 5, 0, commit::SaveForm::kModel};
  leases_.push_back(commit::Lease::take_with_folder(storage, identity).value());
  const auto found = saves();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].save_id, (SaveId{1, 5}));
  EXPECT_EQ(found[0].save_number, 5u);
  EXPECT_EQ(found[0].directory, root_ / "model");
  EXPECT_EQ(found[0].decision, SaveInFlight::Decision::kNone);
  EXPECT_FALSE(found[0].is_leftover);
  ASSERT_EQ(found[0].writers.size(), 1u);
  EXPECT_EQ(found[0].writers[0].pid, getpid());
  // Shards without an index: the file is the commit.
  const std::string mark = commit::folder_of_save(identity) + "/committed";
  ASSERT_TRUE(storage.create_whole(mark, "", Durability::kBuffered));
  EXPECT_EQ(saves()[0].decision, SaveInFlight::Decision::kCommitted);
}

TEST_F(SavesInFlight, DistinguishALeftoverFromASave) {
  storage::Storage& storage = directory();
  ASSERT_TRUE(storage.make_folder(commit::folder_of({1, 5})));
  commit::leave_dead_lease(storage, commit::folder_of({1, 5}));
  const auto found = saves();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_TRUE(found[0].is_leftover);
  ASSERT_EQ(found[0].writers.size(), 1u);
  EXPECT_EQ(found[0].writers[0].state, State::kDead);
}

TEST_F(SavesInFlight, ShowALeaseThatIsNotComplete) {
  storage::Storage& storage = directory();
  const std::string folder = commit::folder_of({1, 5});
  ASSERT_TRUE(storage.make_folder(folder));
  ASSERT_TRUE(storage.create_whole(folder + "/lease", "cairn-lea", Durability::kBuffered));
  const auto found = saves();
  ASSERT_EQ(found.size(), 1u);
  ASSERT_EQ(found[0].writers.size(), 1u);
  EXPECT_FALSE(found[0].writers[0].is_readable);
  EXPECT_FALSE(found[0].is_leftover) << "its process may be about to write the rest";
}

TEST_F(SavesInFlight, OrderedByDirectoryAndNumber) {
  storage::Storage& root = directory();
  begin(root, 9);
  begin(root, 2);
  begin(directory("b"), 1);
  begin(directory("a"), 3);
  EXPECT_EQ(numbers(), (std::vector<std::uint64_t>{2, 9, 3, 1}));
  EXPECT_EQ(saves()[2].directory, root_ / "a");
}

TEST_F(SavesInFlight, LinkedDirectoryIsListedOnce) {
  begin(directory("step-1"), 1);
  fs::create_directory_symlink("step-1", root_ / "newest");
  fs::create_directory_symlink(".", root_ / "self");
  EXPECT_EQ(numbers(), (std::vector<std::uint64_t>{1}));
  EXPECT_EQ(saves()[0].directory, root_ / "step-1");
}

TEST_F(SavesInFlight, SkipFoldersOfOtherNames) {
  storage::Storage& storage = directory();
  for (const std::string name : {".cairn-", ".cairn-1", ".cairn-0000000000000001000000000000000g", "cairn-x"}) {
    ASSERT_TRUE(storage.make_folder(name));
  }
  ASSERT_TRUE(storage.create_whole(commit::folder_of({1, 5}), "a file", Durability::kBuffered));
  EXPECT_TRUE(saves().empty());
}

TEST_F(SavesInFlight, MissingDirectoryIsAnError) {
  const auto found = saves_in_flight(root_);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code(), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace cairn

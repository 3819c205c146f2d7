#include <cairn/cairn.h>
#include <cairn/latest.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "commit/directory/new_directory.h"
#include "commit/lease.h"
#include "commit/save_ticket.h"
#include "commit/testing/dead_lease.h"
#include "save/testing/sample_state.h"
#include "storage/open_directory.h"
#include "storage/testing/scratch_directory.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
constexpr SaveId kDeadId{1, 2};
constexpr SaveId kLiveId{3, 4};

class Clean : public testing::Test {
 protected:
  void save_as(const std::string& name) const {
    SaveOptions options;
    options.durability = Durability::kBuffered;
    ASSERT_TRUE(save(root_ / name, SampleState(1).dict(), options));
  }
  // The folder and a data file of 100 bytes of a save whose process has died.
  static void leave_dead_save(const fs::path& directory) {
    const auto storage = storage::make_directory(directory).value();
    const std::string folder = commit::folder_of(kDeadId);
    ASSERT_TRUE(storage->make_folder(folder));
    commit::leave_dead_lease(*storage, folder);
    ASSERT_TRUE(storage->create_whole(folder + "/metadata", "sealed", Durability::kBuffered));
    ASSERT_TRUE(storage->create_whole(commit::data_file_name({{kDeadId, {}, 0}, false}, 0, 0), std::string(100, 'x'),
                                      Durability::kBuffered));
  }
  static std::size_t count_in(const fs::path& directory) {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(directory), fs::directory_iterator()));
  }

  storage::ScratchDirectory scratch_;
  fs::path root_ = scratch_.path() / "root";
};

TEST_F(Clean, RemovesDeadSavesOfSiblings) {
  save_as("step-1");
  leave_dead_save(root_ / "step-2");
  leave_dead_save(root_ / "step-1");
  const auto tried = clean(root_, {.dry_run = true});
  ASSERT_TRUE(tried) << tried.error().what();
  EXPECT_EQ(count_in(root_ / "step-2"), 2u) << "a dry run removes nothing";
  const auto cleaned = clean(root_);
  ASSERT_TRUE(cleaned) << cleaned.error().what();
  EXPECT_TRUE(cleaned->problems.empty());
  EXPECT_TRUE(cleaned->warnings.empty());
  EXPECT_EQ(count_in(root_ / "step-2"), 0u);
  ASSERT_EQ(cleaned->saves.size(), 2u);
  ASSERT_EQ(tried->saves.size(), 2u);
  EXPECT_EQ(tried->bytes, cleaned->bytes);
  EXPECT_EQ(cleaned->saves[1].directory, root_ / "step-2");
  EXPECT_EQ(cleaned->saves[1].save_id, kDeadId);
  EXPECT_EQ(cleaned->saves[1].files.size(), 3u);
  EXPECT_GT(cleaned->saves[1].bytes, 106u);
  EXPECT_TRUE(verify(root_ / "step-1")->problems.empty());
  EXPECT_TRUE(clean(root_)->saves.empty());
}

TEST_F(Clean, LeavesLivingAndForeignFiles) {
  leave_dead_save(root_ / "step-1");
  std::ofstream(root_ / "step-1" / "notes.txt") << "foreign";
  std::ofstream(root_ / "step-1" / "__9_9.distcp") << "a data file without a trailer";
  const auto storage = storage::open_directory(root_ / "step-1").value();
  const auto lease = commit::Lease::take_with_folder(*storage, {kLiveId, {5, 6}, 1});
  ASSERT_TRUE(lease);
  const std::string published = commit::data_file_name({{kLiveId, {}, 0}, false}, 0, 0);
  ASSERT_TRUE(storage->create_whole(published, "bytes", Durability::kBuffered));
  const auto cleaned = clean(root_ / "step-1");
  ASSERT_TRUE(cleaned);
  ASSERT_EQ(cleaned->saves.size(), 1u);
  EXPECT_EQ(cleaned->saves[0].save_id, kDeadId);
  EXPECT_TRUE(fs::exists(root_ / "step-1" / commit::folder_of(kLiveId) / "lease"));
  EXPECT_TRUE(fs::exists(root_ / "step-1" / published));
  EXPECT_EQ(count_in(root_ / "step-1"), 4u);
}

// The new directory of a save of torch_checkpointing; `root` is the folder of the run, or the missing checkpoint.
TEST_F(Clean, RemovesNewDirectories) {
  for (const fs::path& root : {root_, root_ / "step-1"}) {
    const fs::path made = root_ / commit::name_of_new_directory({kDeadId, "step-1"});
    leave_dead_save(made);
    std::ofstream(made / "model_0.pt") << std::string(50, 'x');
    const fs::path living = root_ / commit::name_of_new_directory({kLiveId, "step-1"});
    const auto storage = storage::make_directory(living).value();
    const auto lease = commit::Lease::take_with_folder(*storage, {kLiveId, {5, 6}, 1}).value();
    EXPECT_EQ(clean(root_ / "step-2").error().code(), ErrorCode::kNotFound);
    const auto tried = clean(root, {.dry_run = true});
    ASSERT_TRUE(tried) << tried.error().what();
    EXPECT_EQ(count_in(root_), 2u);
    const auto cleaned = clean(root);
    ASSERT_TRUE(cleaned) << cleaned.error().what();
    EXPECT_TRUE(cleaned->problems.empty() && cleaned->warnings.empty());
    ASSERT_EQ(cleaned->saves.size(), 1u);
    EXPECT_EQ(cleaned->saves[0].directory, made);
    EXPECT_EQ(cleaned->saves[0].files.size(), 4u);
    EXPECT_GT(cleaned->bytes, 156u);
    EXPECT_EQ(tried->bytes, cleaned->bytes);
    EXPECT_FALSE(fs::exists(made));
    EXPECT_TRUE(fs::exists(living / commit::folder_of(kLiveId) / "lease"));
    fs::remove_all(root_);
  }
}

TEST_F(Clean, FollowsNoLinkInTheRoot) {
  leave_dead_save(scratch_.path() / "elsewhere" / "step-1");
  fs::create_directories(root_);
  fs::create_directory_symlink(scratch_.path() / "elsewhere" / "step-1", root_ / "link");
  const auto cleaned = clean(root_);
  ASSERT_TRUE(cleaned);
  EXPECT_TRUE(cleaned->saves.empty());
  EXPECT_EQ(count_in(scratch_.path() / "elsewhere" / "step-1"), 2u);
}

TEST_F(Clean, UnreadableMetadataKeepsTheSave) {
  leave_dead_save(root_ / "step-1");
  std::ofstream(root_ / "step-1" / ".metadata") << "no pickle";
  const auto cleaned = clean(root_);
  ASSERT_TRUE(cleaned);
  EXPECT_TRUE(cleaned->saves.empty());
  ASSERT_EQ(cleaned->problems.size(), 1u);
  EXPECT_NE(std::string(cleaned->problems[0].what()).find("nothing was cleaned up"), std::string::npos);
  EXPECT_NE(std::string(cleaned->problems[0].what()).find((root_ / "step-1").string()), std::string::npos);
}

TEST_F(Clean, FailsWithoutARoot) {
  EXPECT_EQ(clean(root_).error().code(), ErrorCode::kNotFound);
  std::ofstream(scratch_.path() / "file") << "";
  EXPECT_EQ(clean(scratch_.path() / "file").error().code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace cairn

#include "commit/checkpoint_removal.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "commit/testing/one_save.h"
#include "core/work_count.h"
#include "storage/testing/model_storage.h"
#include "storage/testing/view_storage.h"

namespace cairn::commit {
namespace {

using storage::ModelStorage;

// Notes the changes of the directory, in their order.
class NotedChanges final : public storage::ViewStorage {
 public:
  explicit NotedChanges(storage::Storage& storage) : ViewStorage(storage) {}
  Result<void> publish(std::string_view from, std::string_view to) override {
    changes_.push_back(std::string(from) + " to " + std::string(to));
    return ViewStorage::publish(from, to);
  }
  Result<void> remove(std::string_view name) override {
    changes_.push_back("without " + std::string(name));
    return ViewStorage::remove(name);
  }
  Result<void> sync(std::string_view folder) override {
    changes_.push_back("synced " + std::string(folder));
    return ViewStorage::sync(folder);
  }
  const std::vector<std::string>& changes() const { return changes_; }

 private:
  std::vector<std::string> changes_;
};

TEST(CheckpointRemoval, RefusesALaterCheckpoint) {
  ModelStorage disk;
  commit_one(disk, save_number(1));
  const MetadataInPlace chosen = read_metadata_in_place(disk).value();
  commit_one(disk, save_number(2));
  const auto before = names_in(disk);
  const auto removed = remove_checkpoint(disk, chosen, Removal::kDo);
  ASSERT_FALSE(removed);
  EXPECT_EQ(removed.error().code(), ErrorCode::kReplaced);
  EXPECT_EQ(removed.error().file(), kMetadataName);
  EXPECT_EQ(names_in(disk), before);
}

TEST(CheckpointRemoval, SyncsBeforeEachNextStep) {
  ModelStorage disk;
  commit_one(disk, save_number(1));
  NotedChanges noted(disk);
  const auto removed = remove_checkpoint(noted, read_metadata_in_place(disk).value(), Removal::kDo);
  ASSERT_TRUE(removed) << removed.error().what();
  EXPECT_EQ(removed->files.size(), 2u);
  EXPECT_EQ(noted.changes(), (std::vector<std::string>{".metadata to .cairn-removed", "synced ", "without __0_0.distcp",
                                                       "without .cairn-removed", "synced "}));
  EXPECT_TRUE(names_in(disk).empty());
}

TEST(CheckpointRemoval, CountsAllOfItsFiles) {
  ModelStorage disk;
  commit_one(disk, save_number(1));
  WorkCount count;
  ASSERT_TRUE(remove_checkpoint(disk, read_metadata_in_place(disk).value(), Removal::kDo, nullptr, &count));
  EXPECT_EQ(count.total, 2u);
  EXPECT_EQ(count.done, 2u);
}

// The process that renamed the metadata may have died before its sync.
TEST(CheckpointRemoval, IsFinishedAfterASync) {
  ModelStorage disk;
  commit_one(disk, save_number(1));
  ASSERT_TRUE(disk.publish(kMetadataName, kRemovedName));
  NotedChanges noted(disk);
  const auto removed = finish_removal(noted, Removal::kDo);
  ASSERT_TRUE(removed && *removed);
  EXPECT_EQ((*removed)->files.size(), 2u);
  EXPECT_EQ(noted.changes(),
            (std::vector<std::string>{"synced ", "without __0_0.distcp", "without .cairn-removed", "synced "}));
  EXPECT_TRUE(names_in(disk).empty());
}

}  // namespace
}  // namespace cairn::commit

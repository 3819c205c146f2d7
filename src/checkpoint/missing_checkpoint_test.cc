#include "checkpoint/missing_checkpoint.h"

#include <cairn/cairn.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <fstream>

#include "save/testing/sample_state.h"
#include "storage/testing/scratch_directory.h"

namespace cairn::checkpointer {
namespace {

namespace fs = std::filesystem;

class MissingCheckpoint : public testing::Test {
 protected:
  void make(const std::string& name) const {
    fs::create_directories(root_ / name);
    std::ofstream(root_ / name / ".metadata") << "as good as any for a listing";
  }

  static Error refusal(const fs::path& directory) {
    const auto opened = open(directory);
    EXPECT_FALSE(opened);
    return opened ? Error(ErrorCode::kInternal, "it was opened") : opened.error();
  }

  storage::ScratchDirectory scratch_;
  fs::path root_ = scratch_.path();
};

TEST_F(MissingCheckpoint, SubfoldersAreListedByNumber) {
  for (const std::string name : {"step-100", "step-20", "step-3"}) make(name);
  fs::create_directories(root_ / "logs");
  const Error error = refusal(root_);
  EXPECT_EQ(error.code(), ErrorCode::kNotFound);
  EXPECT_EQ(error.error_number(), ENOENT);
  EXPECT_EQ(error.message(),
            "no checkpoint in '" + root_.string() + "' (no .metadata), but directories in it hold one");
  EXPECT_EQ(error.file(), ".metadata");
  EXPECT_EQ(error.actual(), "step-3, step-20, step-100");
}

TEST_F(MissingCheckpoint, TheListingIsBounded) {
  for (int step = 0; step < 12; ++step) make("step-" + std::to_string(step));
  EXPECT_EQ(refusal(root_).actual(), "step-0, step-1, step-2, step-3, step-4 and 7 more");
}

TEST_F(MissingCheckpoint, AnEmptyDirectoryHoldsNone) {
  const Error error = refusal(root_);
  EXPECT_EQ(error.message(), "no checkpoint in '" + root_.string() + "' (no .metadata)");
  EXPECT_FALSE(error.actual());
}

TEST_F(MissingCheckpoint, AnUncommittedSaveIsMentioned) {
  fs::create_directories(root_ / ".cairn-00000000000000000000000000000001");
  EXPECT_EQ(refusal(root_).message(),
            "no checkpoint in '" + root_.string() + "' (no .metadata). A save into it has not been committed");
}

TEST_F(MissingCheckpoint, NeighboursOfAMissingDirectory) {
  make("step-20");
  make("step-3");
  for (const fs::path& directory : {root_ / "step-4", root_ / "step-4" / ""}) {
    const Error error = refusal(directory);
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    EXPECT_EQ(error.message(), "no checkpoint in '" + directory.string() + "': there is no such directory. '" +
                                   root_.string() + "' holds step-3, step-20");
  }
  EXPECT_EQ(refusal(root_ / "a" / "b").message(),
            "no checkpoint in '" + (root_ / "a" / "b").string() + "': there is no such directory");
}

TEST_F(MissingCheckpoint, NamesTheDirectoryOfAFile) {
  make("step-3");
  const fs::path file = root_ / "step-3" / ".metadata";
  const Error error = refusal(file);
  EXPECT_EQ(error.code(), ErrorCode::kNotFound);
  EXPECT_EQ(error.error_number(), ENOTDIR);
  EXPECT_EQ(error.message(), "no checkpoint in '" + file.string() + "': it is not a directory. The checkpoint is '" +
                                 (root_ / "step-3").string() + "'");
}

TEST_F(MissingCheckpoint, ALoadListsSubfoldersToo) {
  make("step-3");
  SampleState target(0);
  const auto loaded = load(root_, target.dict());
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().actual(), "step-3");
}

}  // namespace
}  // namespace cairn::checkpointer

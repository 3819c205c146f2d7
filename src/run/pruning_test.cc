// prune(), remove_checkpoint() and pins on a real file system.
#include <cairn/cairn.h>
#include <cairn/convert.h>
#include <cairn/latest.h>
#include <cairn/retention.h>
#include <cairn/save.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "save/testing/sample_state.h"
#include "storage/testing/scratch_directory.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;

class Pruning : public testing::Test {
 protected:
  void save_step(int step) const {
    SaveOptions options;
    options.durability = Durability::kBuffered;
    const SampleState state(step);
    ASSERT_TRUE(save(directory_of(step), state.dict(), options));
  }
  fs::path directory_of(int step) const { return root_ / ("step-" + std::to_string(step)); }
  static PruneOptions keep_last(std::uint64_t count) {
    PruneOptions options;
    options.rule.last = count;
    return options;
  }
  PruneReport prune_all(const PruneOptions& options) const {
    auto report = prune(root_, options);
    EXPECT_TRUE(report) << report.error().what();
    return report ? *std::move(report) : PruneReport();
  }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(root_)) names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }

  storage::ScratchDirectory scratch_;
  fs::path root_ = scratch_.path() / "run";
};

using Names = std::vector<std::string>;

TEST_F(Pruning, RemovesOldDirectories) {
  for (int step = 1; step <= 4; ++step) save_step(step);
  PruneOptions options = keep_last(2);
  options.dry_run = true;
  const PruneReport planned = prune_all(options);
  EXPECT_EQ(names().size(), 4u);
  const PruneReport report = prune_all(keep_last(2));
  EXPECT_EQ(names(), (Names{"step-3", "step-4"}));
  ASSERT_EQ(report.removed.size(), 2u);
  EXPECT_EQ(report.removed[0].step, 1u);
  EXPECT_EQ(report.removed[0].files, 2u);
  EXPECT_TRUE(report.problems.empty());
  EXPECT_EQ(planned.bytes, report.bytes);
  EXPECT_EQ(planned.removed.size(), 2u);
  ASSERT_EQ(report.kept.size(), 2u);
  EXPECT_EQ(report.kept[0].reason, "newest");
  EXPECT_EQ(report.kept[1].reason, "last 2");
}

TEST_F(Pruning, ListsOnlyRemovalsAsWorks) {
  for (int step = 1; step <= 3; ++step) save_step(step);
  ProgressWatch watch;
  const auto works = [&watch] {
    std::vector<WorkKind> kinds;
    for (const WorkInProgress& work : watch.take(std::chrono::milliseconds(0))) {
      EXPECT_EQ(work.state, WorkInProgress::State::kSucceeded) << name_of(work.kind);
      kinds.push_back(work.kind);
    }
    return kinds;
  };
  prune_all(keep_last(3));
  EXPECT_EQ(works(), (std::vector{WorkKind::kPrune}));
  prune_all(keep_last(2));
  EXPECT_EQ(works(), (std::vector{WorkKind::kPrune, WorkKind::kRemove}));
}

TEST_F(Pruning, CountsOnlyGoodCheckpoints) {
  for (int step = 1; step <= 4; ++step) save_step(step);
  const fs::path file = directory_of(4) / "__0_0.distcp";
  // Of the right size, but the trailer is damaged.
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(-40, std::ios::end).put('\x55');
  EXPECT_EQ(prune_all(keep_last(1)).removed.size(), 2u);
  EXPECT_EQ(names(), (Names{"step-3", "step-4"}));
  fs::remove(directory_of(3) / "__0_0.distcp");
  EXPECT_TRUE(prune_all(keep_last(1)).removed.empty());  // none is good
  EXPECT_EQ(names(), (Names{"step-3", "step-4"}));
}

TEST_F(Pruning, KeepsPinnedCheckpoints) {
  for (int step = 1; step <= 3; ++step) save_step(step);
  ASSERT_TRUE(pin(directory_of(1), "paper"));
  ASSERT_TRUE(pin(directory_of(1), "again"));
  EXPECT_EQ(read_pin(directory_of(1)).value(), "paper");
  EXPECT_EQ(read_pin(directory_of(2)).value(), std::nullopt);
  EXPECT_EQ(prune_all(keep_last(1)).kept[1].reason, "pinned: paper");
  EXPECT_EQ(names(), (Names{"step-1", "step-3"}));
  EXPECT_EQ(remove_checkpoint(directory_of(1)).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(unpin(directory_of(1)).value());
  EXPECT_FALSE(unpin(directory_of(1)).value());
  EXPECT_TRUE(remove_checkpoint(directory_of(1)));
  EXPECT_EQ(names(), (Names{"step-3"}));
  EXPECT_EQ(pin(root_).error().code(), ErrorCode::kNotFound);
}

TEST_F(Pruning, LeavesFilesOfOthers) {
  for (int step = 1; step <= 2; ++step) save_step(step);
  std::ofstream(directory_of(1) / "notes.txt") << "mine";
  std::ofstream(directory_of(1) / "__7_0.distcp") << "whose?";
  const PruneReport report = prune_all(keep_last(1));
  ASSERT_EQ(report.removed.size(), 1u);
  EXPECT_TRUE(report.removed[0].keeps_directory);
  EXPECT_TRUE(fs::exists(directory_of(1) / "notes.txt"));
  EXPECT_TRUE(fs::exists(directory_of(1) / "__7_0.distcp"));
  EXPECT_FALSE(fs::exists(directory_of(1) / ".metadata"));
  EXPECT_FALSE(fs::exists(directory_of(1) / "__0_0.distcp"));
}

TEST_F(Pruning, LeavesCopiesAndLinks) {
  for (int step = 1; step <= 2; ++step) save_step(step);
  ASSERT_TRUE(convert(directory_of(1), root_ / "copy-1"));
  fs::create_directory_symlink(directory_of(1), root_ / "link");
  EXPECT_EQ(prune_all(keep_last(1)).removed.size(), 1u);
  EXPECT_EQ(names(), (Names{"copy-1", "link", "step-2"}));
  PruneOptions adopting = keep_last(1);
  adopting.adopt = true;
  EXPECT_EQ(prune_all(adopting).removed.size(), 1u);
  EXPECT_EQ(names(), (Names{"link", "step-2"}));
}

// CheckpointManager does not resume from such a checkpoint.
TEST_F(Pruning, ANamelessOneTakesNoPlace) {
  for (int step = 1; step <= 3; ++step) save_step(step);
  fs::rename(directory_of(3), root_ / "last.ckpt");
  EXPECT_EQ(prune_all(keep_last(1)).removed.size(), 1u);
  EXPECT_EQ(names(), (Names{"last.ckpt", "step-2"}));
}

TEST_F(Pruning, KeepsTheBestByItsMetrics) {
  for (int step = 1; step <= 5; ++step) {
    SaveOptions options;
    options.durability = Durability::kBuffered;
    if (step != 3) options.notes = R"({"metrics": {"loss": )" + std::to_string(step == 2 ? 0.5 : 2.0) + "}}";
    const SampleState state(step);
    ASSERT_TRUE(save(directory_of(step), state.dict(), options));
  }
  PruneOptions options;
  options.rule.best = {{"loss", RetentionRule::Best::Order::kMin, 1}};
  EXPECT_EQ(prune_all(options).kept[1].reason, "best by loss");
  EXPECT_EQ(names(), (Names{"step-2", "step-5"}));
}

TEST_F(Pruning, KeepsAProtectedCheckpoint) {
  for (int step = 1; step <= 3; ++step) save_step(step);
  PruneOptions options = keep_last(1);
  options.protect = {directory_of(1)};
  EXPECT_EQ(prune_all(options).removed.size(), 1u);
  EXPECT_EQ(names(), (Names{"step-1", "step-3"}));
}

TEST_F(Pruning, KeepsProtectedByAnyPath) {
  for (int step = 1; step <= 4; ++step) save_step(step);
  fs::create_directory_symlink(root_, scratch_.path() / "link");
  PruneOptions options = keep_last(1);
  options.protect = {scratch_.path() / "link" / "step-1", root_ / "." / "step-2/", root_ / "missing"};
  const PruneReport report = prune_all(options);
  EXPECT_EQ(report.removed.size(), 1u);
  ASSERT_EQ(report.kept.size(), 3u);
  EXPECT_EQ(report.kept[1].reason, "protected");
  EXPECT_EQ(names(), (Names{"step-1", "step-2", "step-4"}));
}

TEST_F(Pruning, KeepsCheckpointBesideASave) {
  for (int step = 1; step <= 4; ++step) save_step(step);
  const auto claim = SaveClaim::make(directory_of(2), {});
  ASSERT_TRUE(claim) << claim.error().what();
  ASSERT_TRUE(pin(directory_of(1)));
  for (const bool dry_run : {true, false}) {
    PruneOptions options = keep_last(1);
    options.dry_run = dry_run;
    const PruneReport report = prune_all(options);
    EXPECT_TRUE(report.problems.empty());
    EXPECT_EQ(report.removed.size(), 1u);
    ASSERT_EQ(report.kept.size(), 3u);
    EXPECT_EQ(report.kept[1].directory, directory_of(2));  // in the order of latest()
    EXPECT_EQ(report.kept[1].reason, "a save into the directory is under way");
    EXPECT_EQ(report.kept[2].reason, "pinned");
  }
  EXPECT_EQ(names(), (Names{"step-1", "step-2", "step-4"}));
}

TEST_F(Pruning, KeepsACheckpointPinnedLate) {
  for (int step = 1; step <= 3; ++step) save_step(step);
  PruneOptions options = keep_last(1);
  options.interrupted = [this] {  // after the choice
    EXPECT_TRUE(pin(directory_of(2), "just in time"));
    return false;
  };
  const PruneReport report = prune_all(options);
  EXPECT_TRUE(report.problems.empty());
  ASSERT_EQ(report.kept.size(), 2u);
  EXPECT_EQ(report.kept[1].reason, "pinned: just in time");
  EXPECT_EQ(names(), (Names{"step-2", "step-3"}));
}

// The remains of the removal are no files of others.
TEST_F(Pruning, PlansWhichDirectoriesStay) {
  for (int step = 1; step <= 3; ++step) save_step(step);
  fs::copy(directory_of(1) / ".metadata", directory_of(1) / ".cairn-removed");
  std::ofstream(directory_of(1) / ".cairn-lock");
  std::ofstream(directory_of(2) / "notes.txt") << "mine";
  PruneOptions options = keep_last(1);
  options.dry_run = true;
  const PruneReport planned = prune_all(options);
  const PruneReport report = prune_all(keep_last(1));
  ASSERT_EQ(planned.removed.size(), 3u);
  ASSERT_EQ(report.removed.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(planned.removed[i].keeps_directory, report.removed[i].keeps_directory) << i;
    EXPECT_EQ(planned.removed[i].was_interrupted, report.removed[i].was_interrupted) << i;
  }
  EXPECT_TRUE(report.removed[0].was_interrupted);
  EXPECT_FALSE(report.removed[1].keeps_directory);
  EXPECT_TRUE(report.removed[2].keeps_directory);
  EXPECT_EQ(names(), (Names{"step-2", "step-3"}));
}

TEST_F(Pruning, RemovalFinishesAnEarlierOne) {
  save_step(1);
  fs::rename(directory_of(1) / ".metadata", directory_of(1) / ".cairn-removed");
  const auto planned = remove_checkpoint(directory_of(1), {.dry_run = true});
  ASSERT_TRUE(planned) << planned.error().what();
  const auto removed = remove_checkpoint(directory_of(1));
  ASSERT_TRUE(removed) << removed.error().what();
  EXPECT_TRUE(planned->was_interrupted && removed->was_interrupted);
  EXPECT_EQ(planned->files, 2u);
  EXPECT_EQ(removed->files, 2u);
  EXPECT_FALSE(removed->keeps_directory);
  EXPECT_EQ(names(), Names());
}

TEST_F(Pruning, FinishesAnInterruptedRemoval) {
  for (int step = 1; step <= 2; ++step) save_step(step);
  fs::rename(directory_of(1) / ".metadata", directory_of(1) / ".cairn-removed");
  EXPECT_EQ(latest(root_).value().value(), directory_of(2));
  const PruneReport report = prune_all(keep_last(5));
  ASSERT_EQ(report.removed.size(), 1u);
  EXPECT_TRUE(report.removed[0].was_interrupted);
  EXPECT_EQ(names(), (Names{"step-2"}));
}

TEST_F(Pruning, KeepsTheNewestOfARewoundRun) {
  save_step(10);
  save_step(20);
  save_step(15);  // the run went back, and on from there
  EXPECT_EQ(prune_all(keep_last(1)).removed.size(), 2u);
  EXPECT_EQ(names(), (Names{"step-15"}));
}

TEST_F(Pruning, ALoadOfARemovedCheckpointFails) {
  for (int step = 1; step <= 2; ++step) save_step(step);
  const Checkpoint checkpoint = open(directory_of(1)).value();
  prune_all(keep_last(1));
  SampleState target(0);
  const auto loaded = checkpoint.load(target.dict());
  if (loaded) {
    EXPECT_EQ(target.step(), 1);  // its files were open
  } else {
    EXPECT_EQ(loaded.error().code(), ErrorCode::kReplaced) << loaded.error().what();
  }
}

TEST_F(Pruning, FailsForAMissingRoot) {
  EXPECT_EQ(prune(root_ / "none", keep_last(1)).error().code(), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace cairn

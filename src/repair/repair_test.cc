#include <cairn/cairn.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "commit/lease.h"
#include "commit/private_folder.h"
#include "commit/testing/dead_lease.h"
#include "coordination/testing/as_ranks.h"
#include "save/testing/sample_state.h"
#include "storage/open_directory.h"
#include "storage/testing/scratch_directory.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using Metadata = RepairReport::Metadata;

constexpr SaveId kDeadId{1, 2};
constexpr SaveId kLiveId{3, 4};

std::string bytes_of(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

void write(const fs::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
}

class Repair : public testing::Test {
 protected:
  void SetUp() override { save_step(directory_, 7); }

  static void save_step(const fs::path& directory, int step) {
    const SampleState state(step);
    const auto saved = save(directory, state.dict(), {.durability = Durability::kBuffered});
    ASSERT_TRUE(saved) << saved.error().what();
  }
  // Two ranks, whose data files are `__0_0.distcp` and `__1_0.distcp`.
  void save_on_two_ranks() const {
    ASSERT_TRUE(fs::remove_all(directory_));
    as_ranks(2, [&](std::size_t rank, Collectives& ranks) {
      std::vector<float> half(8, static_cast<float>(rank));
      StateDict state;
      const auto rows = static_cast<std::int64_t>(2 * rank);
      EXPECT_TRUE(
          state.add_chunk(Path{"w"}, TensorView::contiguous(half.data(), DType::kFloat32, {2, 4}), {4, 4}, {rows, 0}));
      SaveOptions options;
      options.durability = Durability::kBuffered;
      options.collectives = &ranks;
      EXPECT_TRUE(save(directory_, state, options));
    });
  }
  RepairReport repaired(const RepairOptions& options = {}) const {
    const Result<RepairReport> report = repair(directory_, options);
    EXPECT_TRUE(report) << report.error().what();
    return report ? *report : RepairReport();
  }
  // The step of the state in the directory; -1 if a load fails.
  int loaded() const {
    SampleState state(0);
    return load(directory_, state.dict()) ? state.step() : -1;
  }
  void make_folder(SaveId id) const {
    ASSERT_TRUE(storage::make_directory(directory_).value()->make_folder(commit::folder_of(id)));
  }

  storage::ScratchDirectory scratch_;
  const fs::path directory_ = scratch_.path() / "step-7";
  const fs::path metadata_ = directory_ / ".metadata";
};

TEST_F(Repair, LeavesGoodMetadata) {
  const std::string before = bytes_of(metadata_);
  const RepairReport report = repaired({.partial = true});
  EXPECT_EQ(report.metadata, Metadata::kGood);
  EXPECT_TRUE(report.is_complete);
  EXPECT_EQ(report.files, 1u);
  EXPECT_EQ(bytes_of(metadata_), before);
}

TEST_F(Repair, RebuildsLostMetadata) {
  ASSERT_TRUE(fs::remove(metadata_));
  EXPECT_EQ(repaired({.dry_run = true}).metadata, Metadata::kRebuilt);
  EXPECT_FALSE(fs::exists(metadata_)) << "a dry run writes nothing";
  const RepairReport report = repaired();
  EXPECT_EQ(report.metadata, Metadata::kRebuilt);
  EXPECT_TRUE(report.is_complete);
  EXPECT_EQ(report.tensors, 5u);
  EXPECT_EQ(report.values, 2u);
  EXPECT_TRUE(report.problems.empty());
  EXPECT_EQ(loaded(), 7);
  EXPECT_TRUE(verify(directory_)->problems.empty());
}

TEST_F(Repair, FlippedMetadataIsRebuilt) {
  const std::string whole = bytes_of(metadata_);
  for (std::size_t at = 0; at < whole.size(); at += 97) {
    std::string broken = whole;
    broken[at] = static_cast<char>(broken[at] ^ (1 << at % 8));
    write(metadata_, broken);
    const RepairReport report = repaired();
    EXPECT_EQ(report.metadata, Metadata::kRebuilt) << "byte " << at;
    EXPECT_EQ(bytes_of(directory_ / report.damaged_name), broken) << "byte " << at;
    EXPECT_EQ(loaded(), 7) << "byte " << at;
    fs::remove(directory_ / report.damaged_name);
  }
}

TEST_F(Repair, FlippedTrailerIsNeverTaken) {
  ASSERT_TRUE(fs::remove(metadata_));
  const fs::path file = directory_ / "__0_0.distcp";
  const std::string whole = bytes_of(file);
  for (std::size_t back = 1; back < 1000; back += 13) {
    std::string broken = whole;
    const std::size_t at = whole.size() - back;
    broken[at] = static_cast<char>(broken[at] ^ (1 << back % 8));
    write(file, broken);
    const RepairReport report = repaired({.partial = true});
    if (report.metadata == Metadata::kRebuilt) {  // a flip before the trailer, which a read finds
      EXPECT_FALSE(verify(directory_)->problems.empty()) << "byte " << at;
      ASSERT_TRUE(fs::remove(metadata_));
      continue;
    }
    EXPECT_EQ(report.metadata, Metadata::kUnusable) << "byte " << at;
    EXPECT_FALSE(report.problems.empty()) << "byte " << at;
    EXPECT_FALSE(fs::exists(metadata_)) << "byte " << at;
  }
}

TEST_F(Repair, NamesTheFileOfALostRank) {
  save_on_two_ranks();
  ASSERT_TRUE(fs::remove(metadata_));
  ASSERT_TRUE(fs::remove(directory_ / "__1_0.distcp"));
  RepairReport report = repaired();
  EXPECT_EQ(report.metadata, Metadata::kUnusable);
  EXPECT_EQ(report.missing, std::vector<std::string>{"__1_0.distcp"});
  EXPECT_FALSE(fs::exists(metadata_));
  report = repaired({.partial = true});
  EXPECT_EQ(report.metadata, Metadata::kRebuilt);
  EXPECT_FALSE(report.is_complete);
  ASSERT_EQ(report.lost.size(), 1u);
  EXPECT_EQ(report.lost[0].key, "w");
  EXPECT_EQ(report.lost[0].regions, (std::vector<Box>{Box::make({2, 0}, {2, 4}).value()}));
  EXPECT_EQ(report.lost[0].elements, 8);
  EXPECT_FALSE(latest(directory_).value()) << "a partial checkpoint is no whole one";
}

TEST_F(Repair, LeavesIntactMetadataOfLostData) {
  const std::string before = bytes_of(metadata_);
  ASSERT_TRUE(fs::remove(directory_ / "__0_0.distcp"));
  const RepairReport report = repaired({.partial = true});
  EXPECT_EQ(report.metadata, Metadata::kDataLost);
  EXPECT_EQ(report.missing, std::vector<std::string>{"__0_0.distcp"});
  EXPECT_EQ(report.lost_values.size(), 2u);
  EXPECT_EQ(bytes_of(metadata_), before);
}

TEST_F(Repair, TakesTheSaveThatIsNamed) {
  const SaveId first = repaired().save_id.value();
  save_step(scratch_.path() / "step-8", 8);
  fs::copy_file(scratch_.path() / "step-8" / "__0_0.distcp", directory_ / "__1_0.distcp");
  ASSERT_TRUE(fs::remove(metadata_));
  const RepairReport report = repaired({.partial = true});
  EXPECT_EQ(report.metadata, Metadata::kUnusable);
  EXPECT_EQ(report.saves.size(), 2u);
  EXPECT_EQ(repaired({.save = to_hex(first)}).save_id, first);
  EXPECT_EQ(loaded(), 7);
  EXPECT_EQ(repair(directory_, {.save = "none"}).error().code(), ErrorCode::kInvalidArgument);
}

TEST_F(Repair, RemovesDeadSavesAfterwards) {
  const auto storage = storage::make_directory(directory_).value();
  make_folder(kDeadId);
  commit::leave_dead_lease(*storage, commit::folder_of(kDeadId));
  ASSERT_TRUE(fs::remove(metadata_));
  const RepairReport report = repaired();
  ASSERT_EQ(report.cleaned.size(), 1u);
  EXPECT_EQ(report.cleaned[0].save_id, kDeadId);
  EXPECT_FALSE(fs::exists(directory_ / commit::folder_of(kDeadId)));
  EXPECT_EQ(loaded(), 7);
}

TEST_F(Repair, RefusesBesideALivingSave) {
  const auto storage = storage::make_directory(directory_).value();
  const auto lease = commit::Lease::take_with_folder(*storage, {kLiveId, {}, 0});
  ASSERT_TRUE(lease) << lease.error().what();
  ASSERT_TRUE(fs::remove(metadata_));
  EXPECT_EQ(repair(directory_).error().code(), ErrorCode::kUnavailable);
  EXPECT_FALSE(fs::exists(metadata_));
}

TEST_F(Repair, FolderWithoutALeaseIsNoSave) {
  make_folder(kDeadId);
  ASSERT_TRUE(fs::remove(metadata_));
  EXPECT_EQ(repaired().metadata, Metadata::kRebuilt);
  EXPECT_EQ(loaded(), 7);
}

TEST_F(Repair, IsInterruptedBeforeAFile) {
  ASSERT_TRUE(fs::remove(metadata_));
  EXPECT_EQ(repair(directory_, {.interrupted = [] { return true; }}).error().code(), ErrorCode::kCancelled);
  EXPECT_FALSE(fs::exists(metadata_));
}

TEST_F(Repair, EmptyDirectoryHasNoCheckpoint) {
  fs::create_directory(scratch_.path() / "empty");
  EXPECT_EQ(repair(scratch_.path() / "empty")->metadata, Metadata::kNone);
  EXPECT_EQ(repair(scratch_.path() / "missing").error().code(), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace cairn

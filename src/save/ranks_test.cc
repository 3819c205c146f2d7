// Saves and loads by several ranks, which are threads of the test, on real files and on a model disk.
#include <cairn/cairn.h>
#include <cairn/collectives.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>

#include "checkpoint/open_calls.h"
#include "coordination/testing/as_ranks.h"
#include "save/save_calls.h"
#include "save/save_messages.h"
#include "storage/testing/model_storage.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kRows = 64;
constexpr std::int64_t kColumns = 40;

// The state of one of `ranks` ranks at `step`: rows of a sharded tensor, a replica, a tensor and a value common to all
// ranks, and a tensor that only the rank has.
class RankState {
 public:
  RankState(std::int64_t rank, std::int64_t ranks, int step) : rank_(rank), step_(step) {
    const std::int64_t begin = kRows * rank / ranks;
    const std::int64_t end = kRows * (rank + 1) / ranks;
    sharded_ = filled(static_cast<std::size_t>((end - begin) * kColumns), begin * kColumns);
    replica_ = filled(kRows * kColumns, 7);
    plain_ = filled(10, 3);
    own_ = filled(5, rank);
    const Extents shape{kRows, kColumns};
    const auto view = [](std::vector<float>& data, Extents sizes) {
      return TensorView::contiguous(data.data(), DType::kFloat32, std::move(sizes));
    };
    EXPECT_TRUE(state_.add_chunk(Path{"sharded"}, view(sharded_, {end - begin, kColumns}), shape, {begin, 0}));
    EXPECT_TRUE(state_.add_chunk(Path{"replica"}, view(replica_, shape), shape, {0, 0}, {.replicated = true}));
    EXPECT_TRUE(state_.add_tensor(Path{"plain"}, view(plain_, {10})));
    EXPECT_TRUE(state_.add_tensor(Path{"own", rank}, view(own_, {5})));
    EXPECT_TRUE(state_.add_value(Path{"step"}, Value(step)));
  }

  StateDict& dict() { return state_; }

  // The common step of all elements, -1 if the elements are of several steps.
  int found() const {
    const int step = static_cast<int>(*state_.value("step")->get_if<std::int64_t>());
    const std::int64_t begin = static_cast<std::int64_t>(sharded_.empty() ? 0 : sharded_[0]) % 100'000;
    const bool same = sharded_ == filled(sharded_.size(), begin, step) &&
                      replica_ == filled(replica_.size(), 7, step) && plain_ == filled(plain_.size(), 3, step) &&
                      own_ == filled(own_.size(), rank_, step);
    return same ? step : -1;
  }

 private:
  std::vector<float> filled(std::size_t count, std::int64_t first) const { return filled(count, first, step_); }
  static std::vector<float> filled(std::size_t count, std::int64_t first, int step) {
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) {
      values[i] = static_cast<float>(step * 100'000 + first + static_cast<std::int64_t>(i));
    }
    return values;
  }

  std::int64_t rank_;
  int step_;
  std::vector<float> sharded_, replica_, plain_, own_;
  StateDict state_;
};

class ManyRanks : public testing::Test {
 protected:
  ManyRanks() {
    std::string pattern = (fs::temp_directory_path() / "cairn-ranks-XXXXXX").string();
    directory_ = mkdtemp(pattern.data());
  }
  ~ManyRanks() override { fs::remove_all(directory_); }

  void save_step(std::size_t ranks, int step, const SaveOptions& options = {}) {
    as_ranks(ranks, [&](std::size_t rank, Collectives& collectives) {
      RankState state(static_cast<std::int64_t>(rank), static_cast<std::int64_t>(ranks), step);
      SaveOptions mine = options;
      mine.collectives = &collectives;
      const auto report = save(directory_, state.dict(), mine);
      ASSERT_TRUE(report) << report.error().what();
      EXPECT_EQ(report->catalog->find_tensor("sharded")->shape, (Extents{kRows, kColumns}));
    });
  }

  std::size_t file_count() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(directory_), fs::directory_iterator()));
  }

  fs::path directory_;
};

TEST_F(ManyRanks, SaveTogetherAndLoadOwnShards) {
  for (const std::size_t coordinator : {0u, 2u}) {
    const int step = static_cast<int>(coordinator) + 1;
    save_step(4, step, {.coordinator_rank = coordinator});
    EXPECT_EQ(file_count(), 5u);  // one file per rank, and `.metadata`
    as_ranks(4, [&](std::size_t rank, Collectives& collectives) {
      RankState state(static_cast<std::int64_t>(rank), 4, 0);
      const auto report = load(directory_, state.dict(), {.collectives = &collectives});
      ASSERT_TRUE(report) << report.error().what();
      EXPECT_EQ(state.found(), step);
    });
  }
}

TEST_F(ManyRanks, LoadAsAnotherNumberOfRanks) {
  save_step(4, 5);
  for (const std::size_t ranks : {1u, 3u}) {
    as_ranks(ranks, [&](std::size_t rank, Collectives& collectives) {
      RankState state(static_cast<std::int64_t>(rank), static_cast<std::int64_t>(ranks), 0);
      ASSERT_TRUE(load(directory_, state.dict(), {.collectives = &collectives}));
      EXPECT_EQ(state.found(), 5);
    });
  }
  const auto verified = verify(directory_);
  ASSERT_TRUE(verified);
  EXPECT_TRUE(verified->problems.empty());
}

// At 16,384 ranks the metadata has gigabytes: only a coordinator that has laid out all files holds it.
TEST_F(ManyRanks, OnlyCoordinatorHasTheCatalog) {
  constexpr int kTensors = 2000;
  const std::string long_name(400, 'n');
  for (const bool has_common_keys : {false, true}) {
    const fs::path directory = directory_ / (has_common_keys ? "common" : "own");
    std::array<std::shared_ptr<const Catalog>, 2> catalogs;
    std::array<SaveId, 2> ids;
    as_ranks(2, [&](std::size_t rank, Collectives& collectives) {
      const float element = 1;
      StateDict state;
      for (int i = 0; i < kTensors; ++i) {
        const std::string owner = has_common_keys && i % 2 == 0 ? "all" : std::to_string(rank);
        const auto view = TensorView::contiguous(const_cast<float*>(&element), DType::kFloat32, {1});
        ASSERT_TRUE(state.add_tensor(Path{long_name + owner, std::int64_t{i}}, view));
      }
      const auto report = save(directory, state, {.collectives = &collectives, .coordinator_rank = 1});
      ASSERT_TRUE(report) << report.error().what();
      catalogs[rank] = report->catalog;
      ids[rank] = report->save_id;
    });
    EXPECT_GT(fs::file_size(directory / ".metadata"), checkpointer::kSentPickleBytesMax);
    EXPECT_EQ(catalogs[0], nullptr);
    EXPECT_EQ(catalogs[1] != nullptr, has_common_keys);
    if (catalogs[1]) EXPECT_EQ(catalogs[1]->tensors.size(), std::size_t{kTensors} * 3 / 2);
    const auto opened = open(directory);
    ASSERT_TRUE(opened);
    EXPECT_EQ(opened->save_id(), ids[0]);
  }
}

TEST_F(ManyRanks, AllReportTheReasonOfOneFailure) {
  save_step(3, 1);
  const std::size_t files_before = file_count();
  as_ranks(3, [&](std::size_t rank, Collectives& collectives) {
    SaveOptions options{.collectives = &collectives};
    RankState state(static_cast<std::int64_t>(rank), 3, 2);
    std::optional<Error> error;
    if (rank == 1) {
      const Error reason = Error(ErrorCode::kInvalidArgument, "no state today").exception({"pkg.Odd", "", {}});
      error = abandon_save(reason, options);
    } else {
      error = save(directory_, state.dict(), options).error();
    }
    ASSERT_EQ(error->causes().size(), 1u) << error->what();
    EXPECT_EQ(error->causes()[0].rank(), 1);
    EXPECT_EQ(error->code(), ErrorCode::kInvalidArgument);
    ASSERT_NE(error->causes()[0].exception(), nullptr);
    EXPECT_EQ(error->causes()[0].exception()->class_name, "pkg.Odd");
  });
  EXPECT_EQ(file_count(), files_before);
}

TEST_F(ManyRanks, AgreeUnlessARankFails) {
  as_ranks(3, [&](std::size_t rank, Collectives& collectives) {
    const LoadOptions options{.collectives = &collectives};
    EXPECT_TRUE(agree({}, options));
    const Result<void> mine = rank == 2 ? Error(ErrorCode::kNoSpace, "no room to stage") : Result<void>();
    const Result<void> all = agree(mine, options);
    ASSERT_FALSE(all);
    EXPECT_EQ(all.error().code(), ErrorCode::kNoSpace);
    EXPECT_EQ(all.error().rank(), 2);
  });
  EXPECT_TRUE(agree({}, {}));
  EXPECT_EQ(agree(Error(ErrorCode::kNoSpace, "no room to stage"), {}).error().code(), ErrorCode::kNoSpace);
}

TEST_F(ManyRanks, ChangeNoTargetOnAMismatch) {
  save_step(2, 1);
  as_ranks(2, [&](std::size_t rank, Collectives& collectives) {
    RankState state(static_cast<std::int64_t>(rank), 2, 4);
    std::vector<float> more(3);
    if (rank == 1) {
      ASSERT_TRUE(state.dict().add_tensor("unknown", TensorView::contiguous(more.data(), DType::kFloat32, {3})));
    }
    const auto report = load(directory_, state.dict(), {.collectives = &collectives});
    ASSERT_FALSE(report);
    EXPECT_EQ(report.error().code(), ErrorCode::kMissingKey);
    EXPECT_EQ(report.error().rank(), 1);
    EXPECT_EQ(report.error().key(), "unknown");
    EXPECT_EQ(state.found(), 4);
  });
}

TEST_F(ManyRanks, RefuseATensorWithAHole) {
  as_ranks(2, [&](std::size_t rank, Collectives& collectives) {
    RankState state(static_cast<std::int64_t>(rank), 3, 1);  // of three ranks, the third is missing
    const auto report = save(directory_, state.dict(), {.collectives = &collectives});
    ASSERT_FALSE(report);
    EXPECT_EQ(report.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(report.error().key(), "sharded");
  });
  EXPECT_EQ(file_count(), 0u);
}

// Machines without a shared file system: each rank has a separate directory, one of them with a file of an earlier job.
TEST_F(ManyRanks, SaveIntoDirectoriesOfTheirOwn) {
  fs::create_directories(directory_ / "1");
  std::ofstream(directory_ / "1" / "__1_0.distcp") << "of an earlier job";
  for (const int step : {1, 2}) {
    as_ranks(2, [&](std::size_t rank, Collectives& collectives) {
      RankState state(static_cast<std::int64_t>(rank), 2, step);
      const auto report = save(directory_ / std::to_string(rank), state.dict(), {.collectives = &collectives});
      ASSERT_TRUE(report) << report.error().what();
    });
  }
  EXPECT_TRUE(fs::exists(directory_ / "0" / ".metadata"));
  EXPECT_EQ(fs::file_size(directory_ / "1" / "__1_0.distcp"), 17u);
  for (const auto& file :
       fs::directory_iterator(directory_ / "1")) {  // the files of both directories together are a checkpoint
    fs::copy(file, directory_ / "0", fs::copy_options::skip_existing);
  }
  RankState whole(0, 1, 0);
  ASSERT_TRUE(load(directory_ / "0", whole.dict()));
  EXPECT_EQ(whole.found(), 2);
}

TEST_F(ManyRanks, SaveAloneUnderTheirOwnNames) {
  for (const std::uint32_t rank : {0u, 1u, 0u}) {
    RankState state(rank, 2, static_cast<int>(rank) + 1);
    ASSERT_TRUE(save(directory_, state.dict(), {.alone_as_rank = rank}));
  }
  EXPECT_TRUE(fs::exists(directory_ / "__1_0.distcp"));
  EXPECT_EQ(file_count(), 4u);
  for (const std::uint32_t rank : {0u, 1u}) {
    RankState state(rank, 2, 0);
    const auto opened = open(directory_, "__" + std::to_string(rank) + ".metadata");
    ASSERT_TRUE(opened);
    ASSERT_TRUE(opened->load(state.dict()));
    EXPECT_EQ(state.found(), static_cast<int>(rank) + 1);
  }
}

using storage::ModelStorage;

// Rewrites the leases on the disk as leases of dead processes.
void bury_leases(ModelStorage& disk) {
  for (const storage::ListedFile& file : disk.list("").value()) {
    const std::string lease = file.name + "/lease";
    if (!file.is_folder) continue;
    auto text = storage::read_small(disk, lease, 4096);
    if (!text) continue;
    const std::size_t start = text->find("\nstart ");
    if (start == std::string::npos) continue;  // garbled by the power failure: the lease names no process
    ASSERT_TRUE(disk.remove(lease));
    ASSERT_TRUE(disk.create_whole(lease, text->substr(0, start) + "\nstart 1\n", Durability::kDurable));
  }
}

// Checkpoints of single ranks and of all ranks together share a directory. A save that dies, at any operation, damages
// none of the checkpoints.
TEST(CrashOfARankAlone, LeavesOtherCheckpointsIntact) {
  for (std::uint64_t crash_at = 0;; ++crash_at) {
    SCOPED_TRACE(testing::Message() << "crash_at=" << crash_at);
    ModelStorage disk;
    const auto save_as = [&](std::optional<std::uint32_t> rank, int step) {
      RankState state(rank.value_or(0), rank ? 2 : 1, step);
      SaveOptions options{.alone_as_rank = rank, .thread_count = 1};
      options.checkpoint_id = "model";
      return checkpointer::save_into({"model", ModelStorage::opening(disk)}, state.dict(), options).has_value();
    };
    const auto found = [&](const std::string& metadata, std::uint32_t rank, std::int64_t ranks) {
      const auto checkpoint = checkpointer::open_in(ModelStorage::view_of(disk), metadata);
      if (!checkpoint) return checkpoint.error().code() == ErrorCode::kNotFound ? 0 : -1;
      RankState state(rank, ranks, 0);
      return checkpoint->load(state.dict()) ? state.found() : -1;
    };
    ASSERT_TRUE(save_as(std::nullopt, 1) && save_as(0, 2) && save_as(1, 3));
    disk.crash_at(disk.operation_count() + crash_at);
    (void)(save_as(0, 4) && save_as(std::nullopt, 5));
    const bool crashed = disk.fault_fired();
    disk.lose_power(crash_at);
    bury_leases(disk);
    ASSERT_TRUE(save_as(1, 6));
    EXPECT_EQ(found("__1.metadata", 1, 2), 6);
    const int own = found("__0.metadata", 0, 2);
    EXPECT_TRUE(own == 2 || own == 4) << own;
    const int together = found(".metadata", 0, 1);
    EXPECT_TRUE(together == 1 || together == 5) << together;
    if (!crashed) break;  // the loop covered every operation
  }
}

int step_on(ModelStorage& disk) {
  const auto checkpoint = checkpointer::open_in(ModelStorage::view_of(disk));
  if (!checkpoint) return checkpoint.error().code() == ErrorCode::kNotFound ? 0 : -1;
  RankState whole(0, 1, 0);
  if (auto report = checkpoint->load(whole.dict()); !report) {
    ADD_FAILURE() << report.error().what();
    return -1;
  }
  return whole.found();
}

std::size_t save_on(ModelStorage& disk, int step) {
  std::atomic<std::size_t> saved{0};
  as_ranks(3, [&](std::size_t rank, Collectives& collectives) {
    RankState state(static_cast<std::int64_t>(rank), 3, step);
    SaveOptions options{.thread_count = 1, .collectives = &collectives};
    options.checkpoint_id = "model";
    saved += checkpointer::save_into({"model", ModelStorage::opening(disk)}, state.dict(), options).has_value() ? 1 : 0;
  });
  return saved;
}

TEST(CrashOfManyRanks, LeavesTheOldOrNewCheckpoint) {
  for (std::uint64_t crash_at = 0;; ++crash_at) {
    SCOPED_TRACE(testing::Message() << "crash_at=" << crash_at);
    ModelStorage disk;
    ASSERT_EQ(save_on(disk, 1), 3u);
    disk.crash_at(disk.operation_count() + crash_at);
    const std::size_t saved = save_on(disk, 2);
    const bool crashed = disk.fault_fired();
    EXPECT_TRUE(saved == 0 || saved == 3) << saved;
    disk.lose_power(crash_at);
    const int found = step_on(disk);
    EXPECT_TRUE(found == 2 || (saved == 0 && found == 1)) << found;
    EXPECT_EQ(save_on(disk, 3), 3u);
    EXPECT_EQ(step_on(disk), 3);
    if (!crashed) break;  // the loop covered every operation
  }
}

TEST(CrashOfManyRanks, FailedOperationLeavesNoLitter) {
  for (std::uint64_t number = 0;; ++number) {
    SCOPED_TRACE(testing::Message() << "number=" << number);
    ModelStorage disk;
    ASSERT_EQ(save_on(disk, 1), 3u);
    const std::size_t files_before = disk.list("").value().size();
    disk.fail_at(disk.operation_count() + number, Error::from_errno(EIO, "injected"));
    const std::size_t saved = save_on(disk, 2);
    const bool fired = disk.fault_fired();
    EXPECT_TRUE(saved == 0 || saved == 3) << saved;
    const int found = step_on(disk);
    if (saved == 0 && found == 1) EXPECT_LE(disk.list("").value().size(), files_before + 1);
    EXPECT_TRUE(found == 2 || (saved == 0 && found == 1)) << found;
    if (!fired) break;
  }
}

}  // namespace
}  // namespace cairn

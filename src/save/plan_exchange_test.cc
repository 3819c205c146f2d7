// Saves of ranks with few common items or none: each rank lays its files out alone, and the commit plan makes the
// metadata.
#include <cairn/async_checkpointer.h>
#include <cairn/cairn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <string>
#include <vector>

#include "save/rank_differences.h"
#include "save/testing/named_calls.h"
#include "storage/testing/scratch_directory.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

const Names kPlannedByRanks = {"smallest", "gather", "scatter"};
const Names kPlannedWithFewCommon = {"smallest", "gather", "scatter", "gather", "scatter"};

// The state of one of three ranks: a row of a common tensor, and tensors and a value of its own.
struct OwnState {
  explicit OwnState(std::size_t rank, int step, std::int64_t row_of_rank) : row(8), own(3000 + 500 * rank) {
    const std::string name = "stage " + std::to_string(rank);
    std::iota(row.begin(), row.end(), static_cast<float>(100 * step + 10 * static_cast<int>(rank)));
    std::iota(own.begin(), own.end(), static_cast<float>(step));
    EXPECT_TRUE(state.add_chunk(Path{"rows"}, TensorView::contiguous(row.data(), DType::kFloat32, {1, 8}), {3, 8},
                                {row_of_rank, 0}));
    EXPECT_TRUE(state.add_value(Path{name, "step"}, Value(step)));
    for (const char* const part : {"weight", "bias"}) {
      EXPECT_TRUE(state.add_tensor(Path{name, part}, TensorView::contiguous(own.data(), DType::kFloat32,
                                                                            {static_cast<std::int64_t>(own.size())})));
    }
  }
  OwnState(std::size_t rank, int step) : OwnState(rank, step, static_cast<std::int64_t>(rank)) {}
  std::vector<float> row, own;
  StateDict state;
};

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The bytes at which the files of two saves differ: at most the save id, which the trailer has once, and checksums.
std::size_t differing_bytes(const std::string& a, const std::string& b) {
  EXPECT_EQ(a.size(), b.size());
  std::size_t count = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) count += a[i] != b[i] ? 1 : 0;
  return count;
}

// `pickle` without the id of the save into `directory`.
std::string without_save_id(std::string pickle, const fs::path& directory) {
  const std::string id = open(directory)->catalog().save_id.value();
  const std::size_t at = pickle.find(id);
  EXPECT_NE(at, std::string::npos);
  return pickle.erase(at, id.size());
}

bool has_step(const fs::path& directory, int step) {
  std::vector<float> rows(24);
  StateDict target;
  EXPECT_TRUE(target.add_tensor(Path{"rows"}, TensorView::contiguous(rows.data(), DType::kFloat32, {3, 8})));
  const auto loaded = load(directory, target);
  EXPECT_TRUE(loaded) << loaded.error().what();
  EXPECT_TRUE(verify(directory)->problems.empty());
  return rows[0] == static_cast<float>(100 * step) && rows[23] == static_cast<float>(100 * step + 27);
}

enum class WrittenBy : std::uint8_t { kThreads, kProcess };

class DisjointSaves : public testing::TestWithParam<WrittenBy> {
 protected:
  AsyncCheckpointerOptions options() const {
    AsyncCheckpointerOptions options;
    if (GetParam() == WrittenBy::kProcess) options.process = CheckpointProcess::make();
    return options;
  }
  storage::ScratchDirectory scratch_;
};

TEST_P(DisjointSaves, MakeTheFilesOfAPlanOfAllRanks) {
  for (const bool file_per_item : {false, true}) {
    const fs::path joint = scratch_.path() / (file_per_item ? "joint, many files" : "joint");
    const fs::path alone = scratch_.path() / (file_per_item ? "alone, many files" : "alone");
    std::string pickle;
    as_three_ranks([&](std::size_t rank, Collectives& collectives) {
      OwnState mine(rank, 1);
      SaveOptions save_options;
      save_options.collectives = &collectives;
      save_options.file_per_item = file_per_item;
      save_options.checkpoint_id = "the checkpoint";
      ASSERT_TRUE(save(joint, mine.state, save_options));
      AsyncCheckpointer checkpointer(options());
      Names names;
      const auto counted = named_calls(collectives, names);
      AsyncSaveOptions async_options;
      async_options.save = save_options;
      async_options.save.collectives = counted.get();
      const auto saved = checkpointer.save(alone, mine.state, async_options);
      ASSERT_TRUE(saved) << saved.error().what();
      ASSERT_TRUE(saved->write.get()) << saved->write.get().error().what();
      EXPECT_EQ(names, kPlannedByRanks);
      if (rank == 0) pickle = saved->write.get()->render_metadata().value();
    });
    std::size_t file_count = 0;
    for (const auto& entry : fs::directory_iterator(joint)) {
      const fs::path name = entry.path().filename();
      if (name.extension() == ".distcp") {
        EXPECT_LE(differing_bytes(read_file(joint / name), read_file(alone / name)), 32U) << name;
        ++file_count;
      }
    }
    EXPECT_EQ(file_count, file_per_item ? 12U : 3U);
    const std::string of_joint = read_file(joint / ".metadata").substr(0, pickle.size());
    EXPECT_EQ(without_save_id(pickle, alone), without_save_id(of_joint, joint));
    EXPECT_TRUE(verify(alone)->problems.empty());
  }
}

TEST_P(DisjointSaves, GoOnWithTheirPlan) {
  const fs::path directory = scratch_.path() / "checkpoint";
  as_three_ranks([&](std::size_t rank, Collectives& collectives) {
    AsyncCheckpointer checkpointer(options());
    Names names;
    const auto counted = named_calls(collectives, names);
    for (int step = 1; step <= 3; ++step) {
      names.clear();
      OwnState mine(rank, step);
      AsyncSaveOptions together;
      together.save.collectives = counted.get();
      const auto saved = checkpointer.save(directory, mine.state, together);
      ASSERT_TRUE(saved && saved->write.get());
      EXPECT_EQ(names, step == 1 ? kPlannedByRanks : Names{"smallest"});
    }
  });
  EXPECT_TRUE(has_step(directory, 3));
}

// The plan of a coordinator is with its writer: another coordinator plans anew.
TEST_P(DisjointSaves, MayChangeTheCoordinator) {
  as_three_ranks([&](std::size_t rank, Collectives& collectives) {
    AsyncCheckpointer checkpointer(options());
    Names names;
    const auto counted = named_calls(collectives, names);
    int step = 0;
    for (const std::size_t coordinator : std::vector<std::size_t>{2, 2, 1, 2}) {
      names.clear();
      OwnState mine(rank, ++step);
      AsyncSaveOptions together;
      together.save.collectives = counted.get();
      together.save.coordinator_rank = coordinator;
      const auto saved = checkpointer.save(scratch_.path() / std::to_string(step), mine.state, together);
      ASSERT_TRUE(saved && saved->write.get());
      EXPECT_EQ(names, step % 2 == 1 ? kPlannedByRanks : Names{"smallest"}) << step;
    }
  });
  for (int step = 1; step <= 4; ++step) EXPECT_TRUE(has_step(scratch_.path() / std::to_string(step), step));
}

// A rank that could not tell the two states apart by its own part would vote for the plan of the save before.
TEST_P(DisjointSaves, AlternateWithCommonItems) {
  as_three_ranks([&](std::size_t rank, Collectives& collectives) {
    AsyncCheckpointer checkpointer(options());
    Names names;
    const auto counted = named_calls(collectives, names);
    for (int step = 1; step <= 4; ++step) {
      names.clear();
      OwnState mine(rank, step);
      if (step % 2 == 0) ASSERT_TRUE(mine.state.add_value(Path{rank > 0 ? "common" : "alone"}, Value(step)));
      AsyncSaveOptions together;
      together.save.collectives = counted.get();
      const auto saved = checkpointer.save(scratch_.path() / std::to_string(step), mine.state, together);
      ASSERT_TRUE(saved && saved->write.get());
      EXPECT_EQ(names, step <= 2 ? kPlannedByRanks : Names{"smallest"}) << step;
    }
  });
  for (int step = 1; step <= 4; ++step) EXPECT_TRUE(has_step(scratch_.path() / std::to_string(step), step));
}

TEST_P(DisjointSaves, GatherNothingAfterARestart) {
  const fs::path first = scratch_.path() / "first";
  const fs::path second = scratch_.path() / "second";
  const auto save_once = [&](const fs::path& directory, int step, const Names& expected) {
    as_three_ranks([&](std::size_t rank, Collectives& collectives) {
      AsyncCheckpointer checkpointer(options());
      Names names;
      const auto counted = named_calls(collectives, names);
      OwnState mine(rank, step);
      AsyncSaveOptions together;
      together.save.collectives = counted.get();
      const auto saved = checkpointer.save(directory, mine.state, together);
      ASSERT_TRUE(saved && saved->write.get());
      EXPECT_EQ(names, expected);
    });
  };
  save_once(first, 1, kPlannedByRanks);
  ASSERT_TRUE(open_to_load(first));
  save_once(second, 2, {"smallest", "smallest"});
  EXPECT_TRUE(verify(second)->problems.empty());
}

// Two ranks have disjoint rows, but a row of the tensor is on no rank.
TEST_P(DisjointSaves, FailOnAllRanksIfARowIsMissing) {
  const fs::path directory = scratch_.path() / "checkpoint";
  as_three_ranks([&](std::size_t rank, Collectives& collectives) {
    AsyncCheckpointer checkpointer(options());
    AsyncSaveOptions together;
    together.save.collectives = &collectives;
    OwnState right(rank, 1);
    const auto first = checkpointer.save(directory, right.state, together);
    ASSERT_TRUE(first && first->write.get());
    StateDict wrong;
    std::vector<float> row(8);
    ASSERT_TRUE(wrong.add_chunk(Path{"rows"}, TensorView::contiguous(row.data(), DType::kFloat32, {1, 8}), {4, 8},
                                {static_cast<std::int64_t>(rank), 0}));
    const auto save = checkpointer.save(directory, wrong, together);
    ASSERT_TRUE(save) << save.error().what();
    const auto written = save->write.get();
    ASSERT_FALSE(written);
    EXPECT_EQ(written.error().code(), ErrorCode::kInvalidArgument) << written.error().what();
    EXPECT_EQ(written.error().key(), "rows") << written.error().what();
  });
  EXPECT_TRUE(has_step(directory, 1)) << "the checkpoint before is as it was";
}

// The state of one of three ranks, with few common items: a replica, a step, and a position of the rank's own under a
// common key.
struct FewCommonState : OwnState {
  FewCommonState(std::size_t rank, int step, bool differs = false) : OwnState(rank, step), replica(16) {
    for (int i = 0; i < 24; ++i) {
      EXPECT_TRUE(state.add_value(Path{"stage " + std::to_string(rank), "setting " + std::to_string(i)}, Value(i)));
    }
    std::iota(replica.begin(), replica.end(), static_cast<float>(step));
    EXPECT_TRUE(state.add_tensor(Path{"replica"}, TensorView::contiguous(replica.data(), DType::kFloat32, {16})));
    EXPECT_TRUE(state.add_value(Path{"step"}, Value(step)));
    EXPECT_TRUE(state.add_value(Path{"position"}, Value(differs ? static_cast<int>(rank) : 0)));
  }
  std::vector<float> replica;
};

class FewCommonItems : public DisjointSaves {
 protected:
  // Checks what the ranks have saved at the step.
  static void expect_saved(const fs::path& directory, int step) {
    EXPECT_TRUE(has_step(directory, step));
    std::vector<float> replica(16);
    StateDict target;
    ASSERT_TRUE(target.add_tensor(Path{"replica"}, TensorView::contiguous(replica.data(), DType::kFloat32, {16})));
    ASSERT_TRUE(load(directory, target));
    EXPECT_EQ(replica[15], static_cast<float>(step + 15));
    EXPECT_EQ(read_value<std::int64_t>(directory, "step").value(), step);
    const auto opened = open(directory);
    ASSERT_TRUE(opened);
    EXPECT_EQ(opened->catalog().tensors.size(), 1U + 6U + 1U);
    EXPECT_EQ(opened->catalog().values.size(), 3U * 25U + 2U);
  }
};

TEST_P(FewCommonItems, AreAssignedByTheCoordinator) {
  for (const bool file_per_item : {false, true}) {
    const fs::path blocking = scratch_.path() / (file_per_item ? "blocking, many files" : "blocking");
    const fs::path background = scratch_.path() / (file_per_item ? "background, many files" : "background");
    as_three_ranks([&](std::size_t rank, Collectives& collectives) {
      FewCommonState mine(rank, 1);
      Names names;
      const auto counted = named_calls(collectives, names);
      SaveOptions save_options;
      save_options.collectives = counted.get();
      save_options.file_per_item = file_per_item;
      save_options.checkpoint_id = "the checkpoint";
      const auto report = save(blocking, mine.state, save_options);
      ASSERT_TRUE(report) << report.error().what();
      EXPECT_TRUE(report->warnings.empty());
      Names expected = kPlannedWithFewCommon;
      expected.insert(expected.end(), {"gather", "broadcast"});
      EXPECT_EQ(names, expected);
      names.clear();
      AsyncCheckpointer checkpointer(options());
      AsyncSaveOptions async_options;
      async_options.save = save_options;
      const auto saved = checkpointer.save(background, mine.state, async_options);
      ASSERT_TRUE(saved) << saved.error().what();
      ASSERT_TRUE(saved->write.get()) << saved->write.get().error().what();
      EXPECT_EQ(names, kPlannedWithFewCommon);
    });
    expect_saved(blocking, 1);
    expect_saved(background, 1);
    std::size_t file_count = 0;
    for (const auto& entry : fs::directory_iterator(blocking)) {
      const fs::path name = entry.path().filename();
      if (name.extension() != ".distcp") continue;
      EXPECT_LE(differing_bytes(read_file(blocking / name), read_file(background / name)), 32U) << name;
      ++file_count;
    }
    EXPECT_EQ(file_count, file_per_item ? 3U * 28U + 3U : 3U);
  }
}

TEST_P(FewCommonItems, GoOnWithTheirPlan) {
  const fs::path directory = scratch_.path() / "checkpoint";
  as_three_ranks([&](std::size_t rank, Collectives& collectives) {
    AsyncCheckpointer checkpointer(options());
    Names names;
    const auto counted = named_calls(collectives, names);
    for (int step = 1; step <= 3; ++step) {
      names.clear();
      FewCommonState mine(rank, step);
      AsyncSaveOptions together;
      together.save.collectives = counted.get();
      const auto saved = checkpointer.save(directory, mine.state, together);
      ASSERT_TRUE(saved && saved->write.get());
      EXPECT_EQ(names, step == 1 ? kPlannedWithFewCommon : Names{"smallest"});
    }
  });
  expect_saved(directory, 3);
}

TEST_P(FewCommonItems, GatherNothingAfterARestart) {
  const auto save_once = [&](const fs::path& directory, int step, const Names& expected) {
    as_three_ranks([&](std::size_t rank, Collectives& collectives) {
      AsyncCheckpointer checkpointer(options());
      Names names;
      const auto counted = named_calls(collectives, names);
      FewCommonState mine(rank, step);
      AsyncSaveOptions together;
      together.save.collectives = counted.get();
      const auto saved = checkpointer.save(directory, mine.state, together);
      ASSERT_TRUE(saved && saved->write.get());
      EXPECT_EQ(names, expected);
    });
  };
  save_once(scratch_.path() / "first", 1, kPlannedWithFewCommon);
  ASSERT_TRUE(open_to_load(scratch_.path() / "first"));
  save_once(scratch_.path() / "second", 2, {"smallest", "smallest"});
  expect_saved(scratch_.path() / "second", 2);
}

TEST_P(FewCommonItems, DifferencesAreNamed) {
  checkpointer::forget_differences();
  std::vector<std::vector<std::string>> warnings(3);
  as_three_ranks([&](std::size_t rank, Collectives& collectives) {
    AsyncCheckpointer checkpointer(options());
    FewCommonState mine(rank, 1, true);
    AsyncSaveOptions together;
    together.save.collectives = &collectives;
    const auto saved = checkpointer.save(scratch_.path() / "checkpoint", mine.state, together);
    ASSERT_TRUE(saved && saved->write.get());
    warnings[rank] = saved->write.get()->warnings;
  });
  ASSERT_EQ(warnings[0].size(), 1U);
  EXPECT_NE(warnings[0][0].find("'position'"), std::string::npos) << warnings[0][0];
  EXPECT_EQ(warnings[0][0].find("'step'"), std::string::npos);
  checkpointer::forget_differences();
}

// The ranks hold the common key with two shapes: the coordinator finds that in the second exchange.
TEST_P(FewCommonItems, MismatchFailsOnAllRanks) {
  as_three_ranks([&](std::size_t rank, Collectives& collectives) {
    FewCommonState mine(rank, 1);
    std::vector<float> odd(4);
    const auto elements = static_cast<std::int64_t>(rank == 2 ? 4 : 3);
    ASSERT_TRUE(mine.state.add_tensor(Path{"odd"}, TensorView::contiguous(odd.data(), DType::kFloat32, {elements})));
    SaveOptions together;
    together.collectives = &collectives;
    const auto blocking = save(scratch_.path() / "blocking", mine.state, together);
    ASSERT_FALSE(blocking);
    EXPECT_EQ(blocking.error().code(), ErrorCode::kInvalidArgument) << blocking.error().what();
    EXPECT_EQ(blocking.error().key(), "odd");
    AsyncCheckpointer checkpointer(options());
    AsyncSaveOptions background;
    background.save = together;
    const auto saved = checkpointer.save(scratch_.path() / "background", mine.state, background);
    ASSERT_FALSE(saved);
    EXPECT_EQ(saved.error().key(), "odd");
  });
}

// A blocking save makes the joint plan while the remaining ranks write: its failure reaches all ranks.
TEST(BlockingDisjointSaves, FailOnAllRanksIfARowIsMissing) {
  storage::ScratchDirectory scratch;
  as_three_ranks([&](std::size_t rank, Collectives& collectives) {
    StateDict wrong;
    std::vector<float> row(8);
    ASSERT_TRUE(wrong.add_chunk(Path{"rows"}, TensorView::contiguous(row.data(), DType::kFloat32, {1, 8}), {4, 8},
                                {static_cast<std::int64_t>(rank), 0}));
    SaveOptions together;
    together.collectives = &collectives;
    const auto report = save(scratch.path() / "checkpoint", wrong, together);
    ASSERT_FALSE(report);
    EXPECT_EQ(report.error().code(), ErrorCode::kInvalidArgument) << report.error().what();
    EXPECT_EQ(report.error().key(), "rows") << report.error().what();
  });
  for (const auto& entry : fs::recursive_directory_iterator(scratch.path())) {
    EXPECT_FALSE(entry.is_regular_file() && entry.path().filename() != ".cairn-lock") << entry.path();
  }
}

INSTANTIATE_TEST_SUITE_P(Writers, DisjointSaves, testing::Values(WrittenBy::kThreads, WrittenBy::kProcess),
                         [](const auto& each) { return each.param == WrittenBy::kThreads ? "Threads" : "Process"; });

INSTANTIATE_TEST_SUITE_P(Writers, FewCommonItems, testing::Values(WrittenBy::kThreads, WrittenBy::kProcess),
                         [](const auto& each) { return each.param == WrittenBy::kThreads ? "Threads" : "Process"; });

}  // namespace
}  // namespace cairn

// Asynchronous saves on real files, by threads and by the writer process, by one rank and by several ranks.
#include <cairn/async_checkpointer.h>
#include <cairn/cairn.h>
#include <cairn/collectives.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "save/testing/named_calls.h"
#include "save/testing/sample_state.h"
#include "storage/testing/scratch_directory.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;

enum class Writer : std::uint8_t { kThreads, kProcess };

class AsyncSaves : public testing::TestWithParam<Writer> {
 protected:
  AsyncCheckpointerOptions options(bool overlap = false) const {
    AsyncCheckpointerOptions options;
    if (GetParam() == Writer::kProcess) options.process = CheckpointProcess::make();
    options.overlap = overlap;
    return options;
  }

  int loaded_step(const fs::path& directory) const {
    SampleState target(0);
    const auto loaded = load(directory, target.dict());
    EXPECT_TRUE(loaded) << loaded.error().what();
    return loaded ? target.step() : -2;
  }

  bool nothing_else_in(const fs::path& directory) const {
    return std::all_of(fs::directory_iterator(directory), fs::directory_iterator(), [](const auto& entry) {
      const std::string name = entry.path().filename().string();
      return name == ".metadata" || name.ends_with(".distcp");
    });
  }

  storage::ScratchDirectory scratch_;
  fs::path directory_ = scratch_.path() / "checkpoint";
};

TEST_P(AsyncSaves, BecomeTheCheckpoint) {
  AsyncCheckpointer checkpointer(options());
  SampleState state(1);
  const auto save = checkpointer.save(directory_, state.dict());
  ASSERT_TRUE(save) << save.error().what();
  EXPECT_TRUE(save->staging.get());
  const Result<AsyncSaveReport>& report = save->write.get();
  ASSERT_TRUE(report) << report.error().what();
  EXPECT_EQ(save->progress().phase, SavePhase::kEnded);
  EXPECT_EQ(loaded_step(directory_), 1);
  EXPECT_TRUE(verify(directory_)->problems.empty());
  EXPECT_EQ(report->catalog()->find_tensor("weight")->shape, (Extents{30, 50}));
  EXPECT_TRUE(nothing_else_in(directory_));
}

TEST_P(AsyncSaves, HoldTheStateAtTheTimeOfTheCall) {
  AsyncCheckpointer checkpointer(options());
  for (int step = 1; step <= 4; ++step) {
    std::optional<SampleState> state(step);
    const auto save = checkpointer.save(directory_, state->dict());
    ASSERT_TRUE(save) << save.error().what();
    for (Entry& entry : state->dict().entries()) {
      auto* tensor = std::get_if<TensorEntry>(&entry.content);
      if (tensor != nullptr && tensor->box.element_count() > 0) *static_cast<float*>(tensor->local.data) = -1;
    }
    state.reset();
    ASSERT_TRUE(save->write.get());
    EXPECT_EQ(loaded_step(directory_), step);
  }
  EXPECT_TRUE(nothing_else_in(directory_));
}

TEST_P(AsyncSaves, PlanAnewForAnotherState) {
  AsyncCheckpointer checkpointer(options());
  std::vector<float> values(1000, 3);
  for (const std::int64_t count : {10, 10, 1000, 0, 10}) {
    StateDict state;
    ASSERT_TRUE(state.add_tensor("t", TensorView::contiguous(values.data(), DType::kFloat32, {count})));
    ASSERT_TRUE(state.add_value("text", Value(std::string(static_cast<std::size_t>(count) * 30, 'x'))));
    const auto save = checkpointer.save(directory_, state);
    ASSERT_TRUE(save) << save.error().what();
    ASSERT_TRUE(save->write.get());
    EXPECT_TRUE(verify(directory_)->problems.empty());
    EXPECT_EQ(open(directory_)->catalog().find_tensor("t")->shape, (Extents{count}));
  }
}

TEST_P(AsyncSaves, CopyLaterIfAskedTo) {
  AsyncCheckpointer checkpointer(options());
  SampleState state(1);
  AsyncSaveOptions later;
  later.asynchronous_staging = true;
  const auto save = checkpointer.save(directory_, state.dict(), later);
  ASSERT_TRUE(save) << save.error().what();
  ASSERT_TRUE(save->staging.get());
  ASSERT_TRUE(save->write.get());
  EXPECT_EQ(loaded_step(directory_), 1);
}

TEST_P(AsyncSaves, OverlapAcrossDirectoriesOnly) {
  AsyncCheckpointer checkpointer(options(true));
  std::vector<std::shared_future<Result<AsyncSaveReport>>> writes;
  for (int step = 1; step <= 6; ++step) {
    SampleState state(step);
    const auto save = checkpointer.save(step % 3 == 0 ? scratch_.path() / "other" : directory_, state.dict());
    ASSERT_TRUE(save) << save.error().what();
    writes.push_back(save->write);
  }
  for (const auto& write : writes) ASSERT_TRUE(write.get()) << write.get().error().what();
  EXPECT_EQ(loaded_step(directory_), 5);
  EXPECT_EQ(loaded_step(scratch_.path() / "other"), 6);
  EXPECT_TRUE(nothing_else_in(directory_));
}

TEST_P(AsyncSaves, ReportAFailureAndGoOn) {
  AsyncCheckpointer checkpointer(options());
  fs::create_directories(directory_);
  std::ofstream(directory_ / "file") << "not a directory";
  SampleState state(1);
  const auto refused = checkpointer.save(directory_ / "file", state.dict());
  EXPECT_FALSE(refused) << "the coordinator can't claim what is a file";

  const auto first = checkpointer.save(directory_, state.dict());
  ASSERT_TRUE(first);
  ASSERT_TRUE(first->write.get());
  // The directory now holds a checkpoint, and the next save may not overwrite.
  AsyncSaveOptions later;
  later.asynchronous_staging = true;
  later.save.overwrite = false;
  const auto second = checkpointer.save(directory_, state.dict(), later);
  EXPECT_FALSE(second);
  EXPECT_EQ(loaded_step(directory_), 1);
}

TEST_P(AsyncSaves, AreMadeReadyForAhead) {
  AsyncCheckpointer checkpointer(options());
  SampleState state(1);
  ASSERT_TRUE(checkpointer.prepare(state.dict()));
  const auto save = checkpointer.save(directory_, state.dict());
  ASSERT_TRUE(save) << save.error().what();
  ASSERT_TRUE(save->write.get());
  EXPECT_EQ(loaded_step(directory_), 1);
}

TEST_P(AsyncSaves, SingleRanksShareADirectory) {
  AsyncCheckpointer checkpointer(options());
  for (const std::uint32_t rank : {0U, 3U}) {
    SampleState state(static_cast<int>(rank) + 1);
    AsyncSaveOptions alone;
    alone.save.alone_as_rank = rank;
    const auto save = checkpointer.save(directory_, state.dict(), alone);
    ASSERT_TRUE(save) << save.error().what();
    ASSERT_TRUE(save->write.get()) << save->write.get().error().what();
  }
  SampleState target(0);
  ASSERT_TRUE(open(directory_, "__3.metadata")->load(target.dict()));
  EXPECT_EQ(target.step(), 4);
}

// The state of each of three ranks: one row of a sharded tensor, and a common value.
struct RankRow {
  RankRow(std::size_t rank, int step) : row(8, static_cast<float>(step * 10 + static_cast<int>(rank))) {
    EXPECT_TRUE(state.add_chunk(Path{"rows"}, TensorView::contiguous(row.data(), DType::kFloat32, {1, 8}), {3, 8},
                                {static_cast<std::int64_t>(rank), 0}));
    EXPECT_TRUE(state.add_value("step", Value(step)));
  }
  std::vector<float> row;
  StateDict state;
};

TEST_P(AsyncSaves, RanksMeetInTheStorage) {
  as_three_ranks([&](std::size_t rank, Collectives& collectives) {
    AsyncCheckpointer checkpointer(options());
    for (int step = 1; step <= 3; ++step) {
      RankRow row(rank, step);
      AsyncSaveOptions together;
      together.save.collectives = &collectives;
      const auto save = checkpointer.save(directory_, row.state, together);
      ASSERT_TRUE(save) << save.error().what();
      const Result<AsyncSaveReport>& report = save->write.get();
      ASSERT_TRUE(report) << report.error().what();
      EXPECT_EQ(report->render_metadata != nullptr, rank == 0);
    }
  });
  std::vector<float> rows(24);
  StateDict target;
  ASSERT_TRUE(target.add_tensor("rows", TensorView::contiguous(rows.data(), DType::kFloat32, {3, 8})));
  ASSERT_TRUE(load(directory_, target));
  EXPECT_EQ(rows[0], 30);
  EXPECT_EQ(rows[23], 32);
  EXPECT_TRUE(nothing_else_in(directory_));
}

TEST_P(AsyncSaves, TakeOneReductionIfUnchanged) {
  as_three_ranks([&](std::size_t rank, Collectives& collectives) {
    AsyncCheckpointer checkpointer(options());
    std::vector<std::string> names;
    const auto counted = named_calls(collectives, names);
    for (int step = 1; step <= 3; ++step) {
      names.clear();
      RankRow row(rank, step);
      AsyncSaveOptions together;
      together.save.collectives = counted.get();
      const auto save = checkpointer.save(directory_, row.state, together);
      ASSERT_TRUE(save && save->write.get());
      const bool is_first = step == 1;
      EXPECT_EQ(names, is_first ? (std::vector<std::string>{"smallest", "gather", "scatter"})
                                : std::vector<std::string>{"smallest"});
    }
  });
}

TEST_P(AsyncSaves, FailOnAllRanksIfOneHasNoState) {
  as_three_ranks([&](std::size_t rank, Collectives& collectives) {
    AsyncCheckpointer checkpointer(options());
    RankRow row(rank, 1);
    AsyncSaveOptions together;
    together.save.collectives = &collectives;
    if (rank == 1) {
      const Error error = checkpointer.abandon_save(Error(ErrorCode::kUnsupported, "no state here"), together);
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      return;
    }
    const auto save = checkpointer.save(directory_, row.state, together);
    ASSERT_FALSE(save);
    EXPECT_EQ(save.error().code(), ErrorCode::kUnsupported);
    EXPECT_EQ(save.error().rank(), 1);
  });
  EXPECT_TRUE(!fs::exists(directory_) || fs::is_empty(directory_));
}

TEST_P(AsyncSaves, RefuseOptionsOfPlainSaves) {
  AsyncCheckpointer checkpointer(options());
  SampleState state(1);
  AsyncSaveOptions model;
  model.save.safetensors.emplace();
  EXPECT_EQ(checkpointer.save(directory_, state.dict(), model).error().code(), ErrorCode::kUnsupported);
  AsyncSaveOptions asking;
  asking.save.before_commit = [] { return Result<void>(); };
  EXPECT_EQ(checkpointer.save(directory_, state.dict(), asking).error().code(), ErrorCode::kUnsupported);
  EXPECT_TRUE(!fs::exists(directory_) || fs::is_empty(directory_));
}

// Counts `part` in `text`.
std::size_t count_of(std::string_view part, std::string_view text) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST_P(AsyncSaves, NameTheDirectoryOfTheFailure) {
  AsyncCheckpointer checkpointer(options());
  SampleState state(1);
  AsyncSaveOptions failing;
  failing.asynchronous_staging = true;
  failing.confirm_sources = [] { return Result<void>(Error(ErrorCode::kInvalidArgument, "the sources moved")); };
  const auto save = checkpointer.save(directory_, state.dict(), failing);
  ASSERT_TRUE(save) << save.error().what();
  const fs::path other = scratch_.path() / "other";
  const std::string named = "saving to '" + directory_.string() + "'";
  EXPECT_EQ(count_of(named, save->staging.get().error().what()), 1U) << save->staging.get().error().what();
  EXPECT_EQ(count_of(named, save->write.get().error().what()), 1U) << save->write.get().error().what();
  const auto next = checkpointer.save(other, state.dict());
  ASSERT_FALSE(next) << "the next call reports the failure";
  EXPECT_EQ(count_of(named, next.error().what()), 1U) << next.error().what();
  EXPECT_EQ(count_of(other.string(), next.error().what()), 0U) << next.error().what();
}

INSTANTIATE_TEST_SUITE_P(Writers, AsyncSaves, testing::Values(Writer::kThreads, Writer::kProcess),
                         [](const auto& each) { return each.param == Writer::kThreads ? "Threads" : "Process"; });

TEST(AsyncCheckpointer, ReportsTheSaveBefore) {
  storage::ScratchDirectory scratch;
  const fs::path directory = scratch.path() / "checkpoint";
  AsyncCheckpointer checkpointer;
  SampleState state(1);
  AsyncSaveOptions later;
  later.asynchronous_staging = true;
  const auto save = checkpointer.save(directory, state.dict(), later);
  ASSERT_TRUE(save);
  (void)save->write.get();
  fs::remove_all(directory);
  EXPECT_TRUE(checkpointer.save(directory, state.dict()));
  EXPECT_TRUE(checkpointer.close());
  EXPECT_EQ(checkpointer.save(directory, state.dict()).error().code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace cairn

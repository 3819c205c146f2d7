// Asynchronous saves that wait for the memory of an earlier save. The memory limits are read from files of the test.
#include <cairn/collectives.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/byte_units.h"
#include "os/testing/memory_files.h"
#include "save/async_save_operation.h"
#include "storage/testing/scratch_directory.h"
#include "writer/thread_writer.h"

namespace cairn::checkpointer {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kStateBytes = 8 * kMiB;
// A wait for memory lasts a third of kProgress. Long enough for a busy machine: a writer without progress for kProgress
// is given up.
constexpr std::chrono::seconds kProgress{3};

// One of `count` ranks: a part of the state, and the objects that a save uses.
struct SavingRank {
  SavingRank(std::size_t rank, std::size_t count, std::shared_ptr<const os::MemoryLimits> limits)
      : row(kStateBytes / sizeof(float), static_cast<float>(rank)), arenas(3, std::move(limits)) {
    const auto columns = static_cast<std::int64_t>(row.size());
    EXPECT_TRUE(state.add_chunk(Path{"rows"}, TensorView::contiguous(row.data(), DType::kFloat32, {1, columns}),
                                {static_cast<std::int64_t>(count), columns}, {static_cast<std::int64_t>(rank), 0}));
  }

  // Returns the failure of the call or of the write. `meanwhile` is called repeatedly while the call waits.
  std::optional<Error> save(const std::filesystem::path& directory, Collectives* collectives = nullptr,
                            const std::function<void()>& meanwhile = {}) {
    const AsyncSaveResources resources{&arenas, &writer, &plans, {}};
    AsyncSaveOptions options;
    options.save.collectives = collectives;
    options.save.durability = Durability::kBuffered;
    options.save.deadlines.progress = kProgress;
    options.save.interrupted = [&, end = Clock::now() + 5 * kProgress] {
      if (meanwhile) meanwhile();
      return Clock::now() > end;  // ends a wait without a limit, and fails the test
    };
    const auto saved = AsyncSaveOperation(resources, directory, options).run(&state);
    if (!saved) return saved.error();
    const Result<AsyncSaveReport>& written = saved->write.get();
    return written ? std::nullopt : std::optional(written.error());
  }

  // Holds an arena, as an earlier save with a slow write does.
  std::shared_ptr<staging::Arena> hold_arena() {
    auto arena = arenas.take(kStateBytes + kMiB).value();
    EXPECT_TRUE(arena->make_present(0, kStateBytes + kMiB));
    arena->note_present(kStateBytes + kMiB);
    return arena;
  }

  std::vector<float> row;
  StateDict state;
  staging::ArenaPool arenas;
  StagedPlans plans;
  writer::ThreadWriter writer;
};

class SavesWithoutMemory : public testing::Test {
 protected:
  SavesWithoutMemory() {
    files_.join_task();
    files_.leave_in_task(1000 * kMiB);
  }

  // Two ranks; the memory of `limited_rank` is limited.
  void make_ranks(std::size_t limited_rank) {
    for (std::size_t rank = 0; rank < 2; ++rank) {
      ranks_[rank] = std::make_unique<SavingRank>(rank, 2, rank == limited_rank ? files_.limits() : nullptr);
    }
  }
  std::array<std::optional<Error>, 2> save_together() {
    auto group = make_local_group(2, std::chrono::seconds(60));
    std::array<std::optional<Error>, 2> failures;
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] { failures[rank] = ranks_[rank]->save(directory_, group[rank].get()); });
    }
    threads.clear();
    return failures;
  }

  static void expect_no_memory(const std::optional<Error>& failure) {
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->code(), ErrorCode::kNoSpace) << failure->what();
    const std::string what = failure->what();
    for (const std::string part : {"'/sys/fs/cgroup/job/task'", "waiting ", "deadline_seconds"}) {
      EXPECT_NE(what.find(part), std::string::npos) << part << " in: " << what;
    }
  }
  static void expect_success(const std::optional<Error>& failure) { EXPECT_FALSE(failure) << failure->what(); }

  os::MemoryFiles files_;
  storage::ScratchDirectory scratch_;
  std::filesystem::path directory_ = scratch_.path() / "checkpoint";
  std::array<std::unique_ptr<SavingRank>, 2> ranks_;
};

TEST_F(SavesWithoutMemory, FailOnceTheDirectoryIsClaimed) {
  SavingRank alone(0, 1, files_.limits());
  auto held = alone.hold_arena();
  files_.leave_in_task(kMiB);
  expect_no_memory(alone.save(directory_));
  held.reset();
  expect_success(alone.save(directory_));
}

TEST_F(SavesWithoutMemory, WaitBeforeClaimingADirectory) {
  SavingRank alone(0, 1, files_.limits());
  expect_success(alone.save(directory_));  // keeps the plan for the next save
  auto held = alone.hold_arena();
  files_.leave_in_task(kMiB);
  const auto release = [&, at = Clock::now() + 2 * kProgress / 3] {
    if (Clock::now() > at) held.reset();
  };
  expect_success(alone.save(directory_, nullptr, release));
}

TEST_F(SavesWithoutMemory, FailOnAllBeforeTheRendezvous) {
  make_ranks(1);
  for (const auto& failure : save_together()) expect_success(failure);
  auto held = ranks_[1]->hold_arena();
  files_.leave_in_task(kMiB);
  for (const auto& failure : save_together()) {
    expect_no_memory(failure);
    EXPECT_EQ(failure->rank(), 1);
  }
  held.reset();
  for (const auto& failure : save_together()) expect_success(failure);
}

TEST_F(SavesWithoutMemory, FailOnAllRanksAfterThePlan) {
  for (const std::size_t limited_rank : {0U, 1U}) {
    files_.leave_in_task(1000 * kMiB);
    make_ranks(limited_rank);
    auto held = ranks_[limited_rank]->hold_arena();
    files_.leave_in_task(kMiB);
    for (const auto& failure : save_together()) expect_no_memory(failure);
    held.reset();
    for (const auto& failure : save_together()) expect_success(failure);
  }
}

}  // namespace
}  // namespace cairn::checkpointer

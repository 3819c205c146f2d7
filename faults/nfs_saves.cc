// A client of a network file system in `./dev faults nfs`: saves again and again into a directory that a second client
// uses too, and checks the remaining files.
//
//   nfs_saves save DIR COUNT         saves, and prints the numbers of committed, superseded and failed saves
//   nfs_saves ranks DIR DIR COUNT    asynchronous saves by two ranks, which see one directory through two mounts
//   nfs_saves check DIR              loads the checkpoint, and fails if the directory holds any further file
#include <cairn/cairn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

using cairn::DType;
using cairn::StateDict;
using cairn::TensorView;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kElements = 4096;

struct State {
  explicit State(std::int64_t rank) : name("tensor" + std::to_string(rank)) {}
  cairn::Result<StateDict> dict() {
    StateDict state;
    CAIRN_TRY(state.add_tensor(name, TensorView::contiguous(values.data(), DType::kFloat32, {kElements})));
    return state;
  }
  bool is_whole() const {
    return std::all_of(values.begin(), values.end(), [this](float value) { return value == values.front(); });
  }

  std::string name;
  std::vector<float> values = std::vector<float>(kElements);
};

int save(const std::filesystem::path& directory, int count) {
  int committed = 0, superseded = 0, failed = 0;
  State state(0);
  for (int step = 1; step <= count; ++step) {
    std::fill(state.values.begin(), state.values.end(), static_cast<float>(step));
    const auto report = cairn::save(directory, state.dict().value());
    committed += report ? 1 : 0;
    superseded += !report && report.error().code() == cairn::ErrorCode::kSuperseded ? 1 : 0;
    if (!report && report.error().code() != cairn::ErrorCode::kSuperseded) {
      ++failed;
      std::printf("step %d: %s\n", step, report.error().what());
    }
    for (const std::string& warning : report ? report->warnings : std::vector<std::string>()) {
      std::printf("step %d: warning: %s\n", step, warning.c_str());
    }
  }
  std::printf("%d committed, %d superseded, %d failed\n", committed, superseded, failed);
  return failed == 0 ? 0 : 1;
}

int save_as_ranks(const std::vector<std::filesystem::path>& directories, int count) {
  auto group = cairn::make_local_group(directories.size(), std::chrono::minutes(1));
  std::vector<double> longest(directories.size());
  std::vector<int> failed(directories.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < directories.size(); ++rank) {
    threads.emplace_back([&, rank] {
      cairn::AsyncCheckpointer checkpointer;
      cairn::AsyncSaveOptions options;
      options.save.collectives = group[rank].get();
      State state(static_cast<std::int64_t>(rank));
      for (int step = 1; step <= count; ++step) {
        const Clock::time_point begin = Clock::now();
        const auto in_flight = checkpointer.save(directories[rank], state.dict().value(), options);
        if (in_flight) in_flight->write.wait();
        const bool saved = in_flight && in_flight->write.get();
        if (!saved)
          std::printf("rank %zu: %s\n", rank, (in_flight ? in_flight->write.get().error() : in_flight.error()).what());
        failed[rank] += saved ? 0 : 1;
        longest[rank] = std::max(longest[rank], std::chrono::duration<double>(Clock::now() - begin).count());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t rank = 0; rank < directories.size(); ++rank) {
    std::printf("rank %zu: %d saves, %d failed, the longest took %.1f s\n", rank, count, failed[rank], longest[rank]);
  }
  return std::all_of(failed.begin(), failed.end(), [](int number) { return number == 0; }) ? 0 : 1;
}

int check(const std::filesystem::path& directory) {
  const auto checkpoint = cairn::open(directory);
  if (!checkpoint) return std::printf("%s\n", checkpoint.error().what()), 1;
  const auto& catalog = checkpoint->catalog();
  std::set<std::string> expected(catalog.files.begin(), catalog.files.end());
  expected.insert(".metadata");
  int others = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().filename();
    if (expected.contains(name)) continue;
    ++others;
    std::printf("left behind: %s\n", name.c_str());
  }
  State state(0);
  StateDict target = state.dict().value();
  const auto loaded = checkpoint->load(target);
  if (!loaded) std::printf("%s\n", loaded.error().what());
  const bool whole = loaded && state.is_whole();
  std::printf("the checkpoint is %s, %d files left behind\n", whole ? "whole" : "DAMAGED", others);
  return whole && others == 0 ? 0 : 1;
}

}  // namespace

int main(int count, char** words) {
  const std::string_view mode = count > 2 ? words[1] : "";
  if (mode == "save" && count == 4) return save(words[2], std::atoi(words[3]));
  if (mode == "ranks" && count == 5) return save_as_ranks({words[2], words[3]}, std::atoi(words[4]));
  if (mode == "check" && count == 3) return check(words[2]);
  return std::fprintf(stderr, "usage: %s save DIR COUNT | ranks DIR DIR COUNT | check DIR\n", words[0]), 2;
}

// The time and memory of the coordinator to decide the ranks' writes.
//
//   bench_planning RANKS SHARDED REPLICATED VALUES
//
// Each rank lists its slice of SHARDED tensors, cut along the first dimension, and REPLICATED small tensors and VALUES
// of all ranks. Prints seconds, MiB and the written items as JSON.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "plan/global_save_plan.h"

namespace {

using cairn::Box;
using cairn::Extents;
using cairn::plan::LocalItem;
using cairn::plan::LocalPlan;

constexpr std::int64_t kRows = 8;  // of each sharded tensor, on each rank
constexpr std::int64_t kColumns = 1024;

// The plan of a rank: its items, and the memory of their names.
struct RankPlan {
  std::string names;
  LocalPlan items;
};

std::string name_of(const char* kind, int number) {
  return "model.layers." + std::to_string(number / 9) + ".block." + std::to_string(number % 9) + "." + kind;
}

LocalItem tensor(const Extents& shape, const Box& box, bool replicated) {
  LocalItem item;
  item.shape = shape;
  item.box = box;
  item.replicated = replicated;
  item.bytes = static_cast<std::uint64_t>(box.element_count()) * 4;
  return item;
}

RankPlan plan_of(std::int64_t rank, std::int64_t ranks, const std::vector<int>& counts) {
  RankPlan plan;
  std::vector<std::size_t> ends;
  const auto add = [&](const std::string& name, LocalItem item) {
    plan.names += name;
    ends.push_back(plan.names.size());
    plan.items.push_back(std::move(item));
  };
  const Box slice = Box::make({rank * kRows, 0}, {kRows, kColumns}).value();
  for (int i = 0; i < counts[0]; ++i) add(name_of("weight", i), tensor({ranks * kRows, kColumns}, slice, false));
  const Box whole = Box::whole({kColumns}).value();
  for (int i = 0; i < counts[1]; ++i) add(name_of("norm", i), tensor({kColumns}, whole, true));
  for (int i = 0; i < counts[2]; ++i) {
    LocalItem value;
    value.kind = LocalItem::Kind::kValue;
    value.bytes = 600;
    add(name_of("step", i), value);
  }
  std::size_t begin = 0;
  for (std::size_t i = 0; i < ends.size(); begin = ends[i++]) {
    plan.items[i].fqn = std::string_view(plan.names).substr(begin, ends[i] - begin);
  }
  return plan;
}

// Returns a line of /proc/self/status that counts KiB, in MiB.
double status_mib(const std::string& name) {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word && word != name) status.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  double kib = 0;
  status >> kib;
  return kib / 1024;
}

cairn::Result<void> measure(std::int64_t rank_count, const std::vector<int>& counts) {
  std::vector<RankPlan> arrived;
  for (std::int64_t rank = 0; rank < rank_count; ++rank) arrived.push_back(plan_of(rank, rank_count, counts));
  std::vector<LocalPlan> ranks;
  ranks.reserve(arrived.size());
  for (RankPlan& plan : arrived) ranks.push_back(std::move(plan.items));

  const double before = status_mib("VmRSS:");
  std::ofstream("/proc/self/clear_refs") << "5\n";  // resets the high-water mark
  const auto start = std::chrono::steady_clock::now();
  CAIRN_TRY_ASSIGN(const auto plan, cairn::plan::plan_save(ranks));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::size_t writes = 0;
  for (const auto& items : plan.ranks) writes += items.size();
  std::printf("{\"seconds\": %.6f, \"mib\": %.1f, \"writes\": %zu}\n", seconds, status_mib("VmHWM:") - before, writes);
  return {};
}

}  // namespace

int main(int count, char** words) {
  if (count != 5) return std::fprintf(stderr, "usage: %s RANKS SHARDED REPLICATED VALUES\n", words[0]), 2;
  std::vector<int> numbers;
  for (int i = 1; i < count; ++i) numbers.push_back(std::atoi(words[i]));
  const cairn::Result<void> measured = measure(numbers[0], {numbers[1], numbers[2], numbers[3]});
  if (!measured) std::fprintf(stderr, "%s\n", measured.error().what());
  return measured ? 0 : 1;
}

// The time of a rank to encode its local plan from a filled state dict, and to fill a state dict without Python.
//
//   bench_local_plan TENSORS ROUNDS
//
// Prints the seconds of the best round as JSON.
// Prints the seconds of the best round as JSON.
#include <cairn/state_dict.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>

#include "save/save_items.h"
#include "save_plan/local_plans.h"

namespace {

using cairn::DType;
using cairn::Path;
using cairn::Result;
using cairn::StateDict;
using cairn::TensorView;

float memory[16];

// Names as in planning_bench.py.
Result<StateDict> state_of(int tensor_count) {
  StateDict state;
  state.reserve(static_cast<std::size_t>(tensor_count));
  for (int i = 0; i < tensor_count; ++i) {
    CAIRN_TRY(state.add_tensor(Path{"model", "layers." + std::to_string(i) + ".weight"},
                               TensorView::contiguous(memory, DType::kFloat32, {4, 4})));
  }
  return state;
}

Result<std::string> plan_of(const StateDict& state) {
  CAIRN_TRY_ASSIGN(const auto items, cairn::checkpointer::SaveItems::make(state));
  return cairn::save_plan::encode_local_plan(items.sources(), {});
}

// Returns the lesser of `best` and the seconds of the call. Stores the call's result in `result`.
template <typename T, typename Call>
double best_of(double best, Result<T>& result, const Call& call) {
  const auto start = std::chrono::steady_clock::now();
  result = call();
  return std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}

Result<void> measure(int tensor_count, int rounds) {
  double fill = std::numeric_limits<double>::infinity();
  double encode = fill;
  std::size_t bytes = 0;
  for (int i = 0; i < rounds; ++i) {
    Result<StateDict> state{StateDict()};
    Result<std::string> plan{std::string()};
    fill = best_of(fill, state, [&] { return state_of(tensor_count); });
    if (!state) return state.error();
    encode = best_of(encode, plan, [&] { return plan_of(*state); });
    if (!plan) return plan.error();
    bytes = plan->size();
  }
  std::printf("{\"fill\": %.9f, \"encode\": %.9f, \"bytes\": %zu}\n", fill, encode, bytes);
  return {};
}

}  // namespace

int main(int count, char** words) {
  if (count != 3) return std::fprintf(stderr, "usage: %s TENSORS ROUNDS\n", words[0]), 2;
  const Result<void> measured = measure(std::atoi(words[1]), std::atoi(words[2]));
  if (!measured) std::fprintf(stderr, "%s\n", measured.error().what());
  return measured ? 0 : 1;
}

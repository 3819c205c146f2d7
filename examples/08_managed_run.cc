// A run under a CheckpointManager: saves every 4 steps, keeps the last 2 checkpoints and every tenth step, stops at
// SIGTERM with a checkpoint, and resumes.
//
//   08_managed_run DIR
//
// The program trains for 24 steps, and sends itself a SIGTERM in the ninth. Called again, it goes on where it ended.
#include <cairn/cairn.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <optional>
#include <vector>

namespace {

using cairn::DType;
using cairn::TensorView;

struct Model {
  std::vector<double> weight = std::vector<double>(1024, 1);
};

void train(Model& model, std::uint64_t step) {
  for (double& number : model.weight) number = number / 2 + static_cast<double>(step);
}

cairn::Result<cairn::StateDict> describe(Model& model) {
  cairn::StateDict state;
  CAIRN_TRY(state.add_tensor("model.weight", TensorView::contiguous(model.weight.data(), DType::kFloat64, {1024})));
  return state;
}

cairn::CheckpointManagerOptions options() {
  cairn::CheckpointManagerOptions options;
  options.run.schedule.every_steps = 4;
  options.run.keep = cairn::RetentionRule{};
  options.run.keep->last = 2;
  options.run.keep->every_steps = 10;
  options.run.stop_signals = {SIGTERM};
  options.run.warn = [](const cairn::Error& warning) { std::fprintf(stderr, "warning: %s\n", warning.what()); };
  return options;
}

// Trains for `count` steps after the newest good checkpoint, or until a signal. Returns the number of the last step.
cairn::Result<std::uint64_t> train_on(const std::filesystem::path& root, Model& model, std::uint64_t count,
                                      std::optional<std::uint64_t> signal_after = std::nullopt) {
  CAIRN_TRY_ASSIGN(cairn::CheckpointManager manager, cairn::CheckpointManager::open(root, options()));
  CAIRN_TRY_ASSIGN(cairn::StateDict state, describe(model));
  // 1. A damaged checkpoint leads to the next older one, with a warning. If none can be loaded, restore() fails.
  CAIRN_TRY_ASSIGN(const std::optional<std::uint64_t> restored, manager.restore(state));
  const std::uint64_t first = restored.value_or(0);
  std::uint64_t step = first;
  while (step < first + count && !manager.preempted()) {
    train(model, ++step);
    if (signal_after && step == first + *signal_after) std::raise(SIGTERM);  // as a scheduler does
    // 2. Called after each step. Saves if the step is due, if the run stops, and here at the last step.
    const bool is_last = step == first + count;
    CAIRN_TRY_ASSIGN(const std::optional<cairn::AsyncSave> save, manager.save(step, state, {}, is_last));
    if (!save) continue;
    // 3. From here on the model may change.
    if (const auto& staged = save->staging.get(); !staged) return staged.error();
  }
  // 4. Waits for the save in flight, and for the removal of old checkpoints.
  CAIRN_TRY(manager.close());
  std::printf("steps %d to %d: %s\n", static_cast<int>(first + 1), static_cast<int>(step),
              manager.preempted() ? "stopped by a signal" : "done");
  return step;
}

cairn::Result<bool> run(const std::filesystem::path& directory) {
  Model before;
  CAIRN_TRY_ASSIGN(const std::uint64_t stopped, train_on(directory, before, 24, 9));
  // As a new process does.
  Model model;
  CAIRN_TRY_ASSIGN(const std::uint64_t last, train_on(directory, model, 15));

  Model undisturbed;
  for (std::uint64_t step = 1; step <= last; ++step) train(undisturbed, step);
  const bool equal = last == stopped + 15 && model.weight == undisturbed.weight;
  std::printf("%s an undisturbed run\n", equal ? "equal to" : "different from");
  return equal;
}

}  // namespace

int main(int count, char** words) {
  if (count != 2) return std::fprintf(stderr, "usage: %s DIR\n", words[0]), 2;
  try {
    const cairn::Result<bool> good = run(words[1]);
    if (!good) std::fprintf(stderr, "%s\n", good.error().what());
    return good && *good ? 0 : 1;
  } catch (const std::exception& error) {  // of the standard library: no memory, no file
    return std::fprintf(stderr, "%s\n", error.what()), 1;
  }
}

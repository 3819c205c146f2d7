// Computes while a separate process, cairn-writer, writes the copied state. Loads the written checkpoint.
//
//   04_save_in_the_background DIR
//
// The program cairn-writer is found beside this program or beside the library; the environment variable CAIRN_WRITER
// names a different program.
#include <cairn/cairn.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

namespace {

using cairn::DType;
using cairn::TensorView;

constexpr std::int64_t kRows = 512;
constexpr std::int64_t kColumns = 1024;
constexpr int kSteps = 4;

struct Model {
  std::vector<float> weight = std::vector<float>(kRows * kColumns);
};

cairn::Result<cairn::StateDict> describe(Model& model, std::int64_t step) {
  cairn::StateDict state;
  const auto weight = TensorView::contiguous(model.weight.data(), DType::kFloat32, {kRows, kColumns});
  CAIRN_TRY(state.add_tensor("model.weight", weight));
  CAIRN_TRY(state.add_value("step", step));
  return state;
}

void train(Model& model) {
  for (float& number : model.weight) number += 1;
}

void tell(int step, const cairn::SaveProgress& progress) {
  std::printf("step %d: %s, %llu of %llu bytes\n", step, std::string(name_of(progress.phase)).c_str(),
              static_cast<unsigned long long>(progress.bytes_written),
              static_cast<unsigned long long>(progress.bytes_total));
}

cairn::Result<bool> run(const std::filesystem::path& directory) {
  // 1. The process starts ahead: a missing cairn-writer is reported here.
  const auto process = cairn::CheckpointProcess::make();
  CAIRN_TRY(process->start());
  cairn::AsyncCheckpointerOptions options;
  options.process = process;
  cairn::AsyncCheckpointer checkpointer(options);

  Model model;
  std::filesystem::path newest;
  cairn::AsyncSaveOptions save_options;
  save_options.asynchronous_staging = true;
  for (int step = 1; step <= kSteps; ++step) {
    train(model);
    CAIRN_TRY_ASSIGN(const cairn::StateDict state, describe(model, step));
    // 2. The call returns before the bytes are copied. A save waits for the previous save, and fails if the previous
    //    save failed.
    newest = directory / ("step-" + std::to_string(step));
    CAIRN_TRY_ASSIGN(const cairn::AsyncSave save, checkpointer.save(newest, state, save_options));
    // Here the program may do all work that only reads the model.
    if (const auto& staged = save.staging.get(); !staged) return staged.error();
    // 3. From here on the model may change. Even if this program is killed, the writer completes the checkpoint.
    while (save.write.wait_for(std::chrono::milliseconds(50)) != std::future_status::ready) tell(step, save.progress());
    if (const auto& written = save.write.get(); !written) return written.error();
    tell(step, save.progress());
  }
  CAIRN_TRY(checkpointer.close());

  Model restored;
  CAIRN_TRY_ASSIGN(cairn::StateDict state, describe(restored, 0));
  CAIRN_TRY(cairn::load(newest, state));
  const bool equal = restored.weight == model.weight && *state.value("step") == cairn::Value(kSteps);
  std::printf("loaded %s\n", equal ? "the last step" : "something else");
  return equal;
}

}  // namespace

int main(int count, char** words) {
  if (count != 2) return std::fprintf(stderr, "usage: %s DIR\n", words[0]), 2;
  const cairn::Result<bool> good = run(words[1]);
  if (!good) std::fprintf(stderr, "%s\n", good.error().what());
  return good && *good ? 0 : 1;
}

// Saves a model's state, loads the state in place, and reads a box of a tensor without loading the rest.
//
//   01_save_and_load DIR
#include <cairn/cairn.h>

#include <cstdio>
#include <numeric>
#include <vector>

namespace {

using cairn::DType;
using cairn::TensorView;

struct Model {
  std::vector<float> weight = std::vector<float>(64 * 32);
  std::vector<double> top = std::vector<double>(4 * 8);     // rows 0 to 3 of a table of 8 x 8
  std::vector<double> bottom = std::vector<double>(4 * 8);  // rows 4 to 7
};

// Describes the state to save or to fill: tensors by pointer, values by value.
cairn::Result<cairn::StateDict> describe(Model& model, std::int64_t step) {
  cairn::StateDict state;
  CAIRN_TRY(state.add_tensor("model.weight", TensorView::contiguous(model.weight.data(), DType::kFloat32, {64, 32})));
  const auto half = [](std::vector<double>& rows) {
    return TensorView::contiguous(rows.data(), DType::kFloat64, {4, 8});
  };
  CAIRN_TRY(state.add_chunk("model.table", half(model.top), {8, 8}, {0, 0}));
  CAIRN_TRY(state.add_chunk("model.table", half(model.bottom), {8, 8}, {4, 0}));
  // A path keeps the value's place in the nested state: Python reads {"trainer": {"step": ..., "note": ...}}.
  CAIRN_TRY(state.add_value(cairn::Path{"trainer", "step"}, step));
  CAIRN_TRY(state.add_value(cairn::Path{"trainer", "note"}, "first try"));
  return state;
}

cairn::Result<bool> run(const std::filesystem::path& directory) {
  Model model;
  std::iota(model.weight.begin(), model.weight.end(), 0.0F);
  std::iota(model.top.begin(), model.top.end(), 0.0);
  std::iota(model.bottom.begin(), model.bottom.end(), 32.0);
  CAIRN_TRY_ASSIGN(const cairn::StateDict saved, describe(model, 1000));
  CAIRN_TRY_ASSIGN(const cairn::SaveReport report, cairn::save(directory, saved));
  std::printf("saved %s: %llu bytes\n", to_hex(report.save_id).c_str(),
              static_cast<unsigned long long>(report.bytes_written));

  Model restored;
  CAIRN_TRY_ASSIGN(cairn::StateDict state, describe(restored, 0));
  CAIRN_TRY(cairn::load(directory, state));
  const bool equal = restored.weight == model.weight && restored.top == model.top && restored.bottom == model.bottom;
  std::printf("loaded %s, step %s\n", equal ? "what was saved" : "something else",
              to_string(*state.value("trainer.step")).c_str());

  CAIRN_TRY_ASSIGN(const cairn::Checkpoint checkpoint, cairn::open(directory));
  CAIRN_TRY_ASSIGN(const cairn::Box box, cairn::Box::make({3, 2}, {2, 3}));  // the box lies across both chunks
  std::vector<double> part(6);
  CAIRN_TRY(checkpoint.read("model.table", box, TensorView::contiguous(part.data(), DType::kFloat64, box.sizes())));
  const bool right_part = part == std::vector<double>{26, 27, 28, 34, 35, 36};
  std::printf("table %s:", to_string(box).c_str());
  for (const double number : part) std::printf(" %g", number);
  std::printf("\n");
  return equal && right_part && *state.value("trainer.step") == cairn::Value(1000);
}

}  // namespace

int main(int count, char** words) {
  if (count != 2) return std::fprintf(stderr, "usage: %s DIR\n", words[0]), 2;
  const cairn::Result<bool> good = run(words[1]);
  if (!good) std::fprintf(stderr, "%s\n", good.error().what());
  return good && *good ? 0 : 1;
}

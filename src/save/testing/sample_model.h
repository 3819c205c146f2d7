// SampleModel: a state of tensors in which every element encodes a training step, some tensors in chunks. For tests of
// safetensors models.
#pragma once

#include <cairn/cairn.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace cairn {

class SampleModel {
 public:
  enum class Stripes : bool { kNone, kRows };  // kRows: a tensor "striped" in chunks of one row, a file for each chunk

  // 0 makes a target for a load.
  explicit SampleModel(int step, Stripes stripes = Stripes::kNone) : mask_(static_cast<std::uint8_t>(step % 2)) {
    add(Path{"weight"}, {300, 50}, {0, 0}, {300, 50}, step);
    add(Path{"scalar"}, {}, {}, {}, step);
    add(Path{"empty"}, {0, 3}, {0, 0}, {0, 3}, step);
    EXPECT_TRUE(state_.add_tensor("mask", TensorView::contiguous(&mask_, DType::kBool, {})));
    if (stripes == Stripes::kNone) return;
    for (std::int64_t row = 0; row < kStripeCount; ++row) {
      add(Path{"striped"}, {kStripeCount, 4}, {row, 0}, {1, 4}, step);
    }
  }
  SampleModel(const SampleModel&) = delete;
  SampleModel& operator=(const SampleModel&) = delete;

  static constexpr std::int64_t kStripeCount = 3;

  StateDict& dict() { return state_; }

  // The common step of all elements, or -1 if the elements are of several steps.
  int step() const {
    const int step = static_cast<int>(memories_.front().front());
    for (const auto& memory : memories_) {
      for (const float element : memory) {
        if (element != static_cast<float>(step)) return -1;
      }
    }
    return mask_ == step % 2 ? step : -1;
  }

 private:
  void add(Path path, Extents shape, Extents offsets, const Extents& sizes, int step) {
    auto& memory =
        memories_.emplace_back(static_cast<std::size_t>(element_count(sizes).value()), static_cast<float>(step));
    const TensorView view = TensorView::contiguous(memory.data(), DType::kFloat32, sizes);
    EXPECT_TRUE(state_.add_chunk(std::move(path), view, std::move(shape), std::move(offsets)));
  }

  StateDict state_;
  std::deque<std::vector<float>> memories_;
  std::uint8_t mask_;
};

// Saves the model of a step; with stripes if the form is sharded.
inline Result<SaveReport> save_model(const std::filesystem::path& directory, int step,
                                     const SafetensorsForm& form = {}) {
  SaveOptions options;
  options.durability = Durability::kBuffered;
  options.safetensors = form;
  SampleModel model(step, form.sharded ? SampleModel::Stripes::kRows : SampleModel::Stripes::kNone);
  return save(directory, model.dict(), options);
}

// The step of the model in `directory`; -1 for a model that is damaged or missing.
inline int step_of_model(const std::filesystem::path& directory,
                         SampleModel::Stripes stripes = SampleModel::Stripes::kNone) {
  SampleModel target(0, stripes);
  return load(directory, target.dict()) ? target.step() : -1;
}

}  // namespace cairn

// SampleState: a state dict in which every element encodes a training step. For the tests of this folder.
#pragma once

#include <cairn/state_dict.h>
#include <gtest/gtest.h>

#include <deque>
#include <string>
#include <vector>

namespace cairn {

class SampleState {
 public:
  // Every tensor and value is filled from `step`; 0 makes a target for a load.
  explicit SampleState(int step) {
    add_tensor("weight", {30, 50}, step);
    add_tensor("bias", {7}, step);
    add_tensor("scalar", {}, step);
    add_tensor("empty", {0, 3}, step);
    auto& memory = memories_.emplace_back(12, static_cast<float>(step));
    for (std::int64_t row = 0; row < 3; ++row) {  // in three chunks
      const TensorView chunk = TensorView::contiguous(memory.data() + 4 * row, DType::kFloat32, {1, 4});
      EXPECT_TRUE(state_.add_chunk(Path{"sharded"}, chunk, {3, 4}, {row, 0}));
    }
    EXPECT_TRUE(state_.add_value(Path{"optimizer", "lr"}, Value(0.5 * step)));
    EXPECT_TRUE(state_.add_value(Path{"step"}, Value(step)));
  }

  StateDict& dict() { return state_; }
  const StateDict& dict() const { return state_; }

  // The common step of all elements, or -1 if the elements are of several steps.
  int step() const {
    const auto* value = std::get_if<Value>(&state_.find("step")->content);
    const int step = static_cast<int>(*value->get_if<std::int64_t>());
    for (const auto& memory : memories_) {
      for (const float element : memory) {
        if (element != static_cast<float>(step)) return -1;
      }
    }
    return *state_.value("optimizer.lr") == Value(0.5 * step) ? step : -1;
  }

 private:
  void add_tensor(const std::string& name, Extents sizes, int step) {
    auto& memory =
        memories_.emplace_back(static_cast<std::size_t>(element_count(sizes).value()), static_cast<float>(step));
    EXPECT_TRUE(state_.add_tensor(name, TensorView::contiguous(memory.data(), DType::kFloat32, sizes)));
  }

  StateDict state_;
  std::deque<std::vector<float>> memories_;
};

}  // namespace cairn

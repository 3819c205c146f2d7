#include "core/host_tensors.h"

#include <gtest/gtest.h>

namespace cairn {
namespace {

TEST(HostTensors, TensorsOfTheCpuPass) {
  float element = 0;
  StateDict state;
  state.add_tensor("a", TensorView::contiguous(&element, DType::kFloat32, {1})).value();
  state.add_value("step", Value(std::int64_t{1})).value();
  EXPECT_TRUE(expect_host_tensors(state.entries()));
}

TEST(HostTensors, ATensorOfADeviceIsRefused) {
  float element = 0;
  StateDict state;
  state.add_tensor("a", TensorView::contiguous(&element, DType::kFloat32, {1})).value();
  state.add_tensor("b", TensorView::contiguous(&element, DType::kFloat32, {1}, Device::cuda(3))).value();
  const Error error = expect_host_tensors(state.entries()).error();
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_EQ(error.key(), "b");
  EXPECT_EQ(error.actual(), "cuda:3");
}

}  // namespace
}  // namespace cairn

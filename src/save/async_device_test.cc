// Asynchronous saves of tensors on devices, with the stand-in driver.
#include <cairn/async_checkpointer.h>
#include <cairn/cairn.h>
#include <fake_cuda/device_bytes.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "storage/testing/scratch_directory.h"

namespace cairn {
namespace {

using fake_cuda::Bytes;
using fake_cuda::DeviceBytes;
using fake_cuda::random_bytes;

constexpr std::size_t kBytes = std::size_t{5} << 20;
constexpr std::chrono::seconds kLong{60};

class AsyncDeviceSaves : public testing::Test {
 protected:
  void SetUp() override { fake_cuda_reset(); }
  void TearDown() override { fake_cuda_reset(); }

  Device device(int ordinal = 0) const { return Device::cuda(ordinal, reinterpret_cast<std::uintptr_t>(trainer_)); }

  StateDict state() const {
    StateDict state;
    const auto size = static_cast<std::int64_t>(kBytes / 4);
    state.add_tensor("weight", TensorView::contiguous(weight_.data(), DType::kFloat32, {size}, device())).value();
    state.add_tensor("bias", TensorView::contiguous(cpu_.data(), DType::kFloat32, {25})).value();
    state.add_value("step", Value(std::int64_t{4})).value();
    return state;
  }
  Bytes loaded_weight() const {
    Bytes weight(kBytes);
    std::vector<float> bias(25);
    StateDict target;
    const auto size = static_cast<std::int64_t>(kBytes / 4);
    target.add_tensor("weight", TensorView::contiguous(static_cast<void*>(weight.data()), DType::kFloat32, {size}))
        .value();
    target.add_tensor("bias", TensorView::contiguous(static_cast<void*>(bias.data()), DType::kFloat32, {25})).value();
    load(directory_, target).value();
    EXPECT_EQ(bias, cpu_);
    return weight;
  }
  void launch_overwrite(std::uint64_t seed) {
    fake_cuda_launch_write(trainer_, weight_.address(), random_bytes(kBytes, seed).data(), kBytes);
  }

  storage::ScratchDirectory scratch_;
  std::filesystem::path directory_ = scratch_.path() / "checkpoint";
  void* trainer_ = fake_cuda_make_stream(0);
  Bytes contents_ = random_bytes(kBytes, 1);
  DeviceBytes weight_{0, contents_};
  std::vector<float> cpu_ = std::vector<float>(25, 1.5F);
};

TEST_F(AsyncDeviceSaves, BlockingStagingHoldsTheState) {
  AsyncCheckpointer checkpointer;
  for (int step = 0; step < 3; ++step) {
    const StateDict saved = state();
    const AsyncSave save = checkpointer.save(directory_, saved).value();
    launch_overwrite(9);
    fake_cuda_run(trainer_);
    save.write.get().value();
    EXPECT_EQ(loaded_weight(), contents_);
    fake_cuda_write(weight_.address(), contents_.data(), kBytes);
  }
}

TEST_F(AsyncDeviceSaves, DeviceWritesPreparedMemory) {
  AsyncCheckpointer checkpointer;
  const StateDict saved = state();
  checkpointer.prepare(saved).value();
  EXPECT_GE(fake_cuda_registered_bytes(), kBytes);
  const long registrations = fake_cuda_calls("cuMemHostRegister_v2");
  checkpointer.save(directory_, saved).value().write.get().value();
  EXPECT_EQ(fake_cuda_calls("cuMemHostRegister_v2"), registrations);
  EXPECT_EQ(loaded_weight(), contents_);
}

TEST_F(AsyncDeviceSaves, TrainerMayOverwriteAfterFence) {
  AsyncCheckpointer checkpointer;
  const StateDict saved = state();
  checkpointer.prepare(saved).value();
  AsyncSaveOptions options;
  options.asynchronous_staging = true;
  const AsyncSave save = checkpointer.save(directory_, saved, options).value();
  ASSERT_TRUE(save.fence(device(), kLong).value());
  launch_overwrite(10);
  fake_cuda_run(trainer_);
  save.write.get().value();
  EXPECT_EQ(loaded_weight(), contents_);
  EXPECT_TRUE(save.fence(device(), kLong).value());  // after the end of the save, too
}

TEST_F(AsyncDeviceSaves, FailedStagingOpensTheFence) {
  AsyncCheckpointer checkpointer;
  const StateDict saved = state();
  AsyncSaveOptions options;
  options.asynchronous_staging = true;
  options.confirm_sources = [] { return Error(ErrorCode::kInvalidArgument, "moved").key("weight"); };
  const AsyncSave save = checkpointer.save(directory_, saved, options).value();
  EXPECT_EQ(save.staging.get().error().key(), "weight");
  EXPECT_EQ(save.write.get().error().key(), "weight");
  EXPECT_TRUE(save.fence(device(), kLong).value());
}

TEST_F(AsyncDeviceSaves, ReportRefusedRegistrationOnce) {
  fake_cuda_fail("cuMemHostRegister_v2", 1, 2, 1);
  AsyncCheckpointer checkpointer;
  const StateDict saved = state();
  std::size_t reported = 0;
  for (int step = 0; step < 4; ++step) {
    reported += checkpointer.save(directory_, saved).value().write.get().value().warnings.size();
    EXPECT_EQ(loaded_weight(), contents_);
  }
  EXPECT_EQ(reported, 1U);
}

TEST_F(AsyncDeviceSaves, KernelErrorFailsTheSaveOnly) {
  AsyncCheckpointer checkpointer;
  const StateDict saved = state();
  checkpointer.save(directory_, saved).value().write.get().value();
  fake_cuda_break(0, 710);
  const auto save = checkpointer.save(directory_, saved);
  ASSERT_FALSE(save);
  EXPECT_EQ(save.error().key(), "weight");
  EXPECT_NE(std::string(save.error().what()).find("cuda:0"), std::string::npos);
  fake_cuda_reset();
  EXPECT_EQ(loaded_weight(), contents_);
}

TEST_F(AsyncDeviceSaves, CaptureFailsTheSaveNotTheGraph) {
  AsyncCheckpointer checkpointer;
  const StateDict saved = state();
  fake_cuda_begin_capture(trainer_);
  const auto save = checkpointer.save(directory_, saved);
  EXPECT_EQ(save.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(fake_cuda_end_capture(trainer_), 1);
  checkpointer.save(directory_, saved).value().write.get().value();
  EXPECT_EQ(loaded_weight(), contents_);
}

TEST_F(AsyncDeviceSaves, ArenasAreReusedAfterAHang) {
  const std::size_t before = fake_cuda_registered_bytes();
  for (const bool later : {false, true}) {
    AsyncCheckpointerOptions overlapping;
    overlapping.overlap = true;
    AsyncCheckpointer checkpointer(overlapping);
    const StateDict saved = state();
    checkpointer.prepare(saved).value();
    AsyncSaveOptions options;
    options.save.deadlines.progress = std::chrono::milliseconds(300);
    options.asynchronous_staging = later;
    fake_cuda_launch_hang(trainer_);
    for (int generation = 0; generation < 2; ++generation) {
      const auto hung = checkpointer.save(directory_, saved, options);
      EXPECT_EQ((later ? hung.value().staging.get().error() : hung.error()).code(), ErrorCode::kUnavailable);
    }
    EXPECT_EQ(checkpointer.save(directory_, saved).error().code(), ErrorCode::kUnavailable);
    fake_cuda_release(trainer_);
    fake_cuda_run(trainer_);
    Result<AsyncSave> save = checkpointer.save(directory_, saved);
    for (int i = 0; i < 100 && !save; ++i) save = checkpointer.save(directory_, saved);  // each asks the device once
    save.value().write.get().value();
    EXPECT_EQ(loaded_weight(), contents_);
  }
  // The second save's arena is not registered: its bounce buffer stays registered for ever.
  EXPECT_EQ(fake_cuda_registered_bytes(), before + 2 * (std::size_t{4} << 20));
}

TEST_F(AsyncDeviceSaves, FailedCopiesHoldBackTheStream) {
  AsyncCheckpointer checkpointer;
  const StateDict saved = state();
  checkpointer.prepare(saved).value();
  AsyncSaveOptions options;
  options.save.deadlines.progress = std::chrono::milliseconds(300);
  for (const bool later : {false, true}) {
    options.asynchronous_staging = later;
    const long before = fake_cuda_calls("cuStreamWaitEvent");
    fake_cuda_launch_hang(trainer_);
    const auto hung = checkpointer.save(directory_, saved, options);
    if (later) {
      EXPECT_EQ(hung.value().staging.get().error().code(), ErrorCode::kUnavailable);
      ASSERT_TRUE(hung.value().fence(device(), kLong).value());
    }
    // Of Cairn's stream for the trainer's, and of the trainer's stream for Cairn's.
    EXPECT_GE(fake_cuda_calls("cuStreamWaitEvent") - before, 2);
    fake_cuda_release(trainer_);
    fake_cuda_run(trainer_);
  }
}

TEST_F(AsyncDeviceSaves, ForkedChildDropsCheckpointer) {
  auto checkpointer = std::make_unique<AsyncCheckpointer>();
  const StateDict saved = state();
  checkpointer->save(directory_, saved).value().write.get().value();
  const pid_t child = fork();
  if (child == 0) {
    checkpointer.reset();
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  checkpointer->save(directory_, saved).value().write.get().value();
  EXPECT_EQ(loaded_weight(), contents_);
}

}  // namespace
}  // namespace cairn

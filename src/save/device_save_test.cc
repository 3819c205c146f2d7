// Synchronous saves of tensors on devices, with the stand-in driver.
#include <cairn/cairn.h>
#include <cairn/collectives.h>
#include <fake_cuda/device_bytes.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "storage/testing/scratch_directory.h"

namespace cairn {
namespace {

using fake_cuda::Bytes;
using fake_cuda::DeviceBytes;
using fake_cuda::random_bytes;

constexpr std::int64_t kSavedRows = 2000;
constexpr std::int64_t kSavedColumns = 2500;  // 20 MB: several segments, whose borders lie within rows
constexpr std::size_t kSavedBytes = std::size_t{4} * kSavedRows * kSavedColumns;

class DeviceSaves : public testing::Test {
 protected:
  void SetUp() override { fake_cuda_reset(); }
  void TearDown() override { fake_cuda_reset(); }

  Device cuda(int ordinal) const {
    return Device::cuda(ordinal, reinterpret_cast<std::uintptr_t>(ordinal == 0 ? trainer_ : second_trainer_));
  }
  // A whole tensor of device 0, a transposed one of device 1, small ones, and a tensor and a value of the CPU.
  StateDict state() const {
    StateDict state;
    state.add_tensor("weight", contiguous(weight_, {kSavedRows, kSavedColumns}, 0)).value();
    const TensorView turned{turned_.data(), DType::kFloat32, {100, 300}, {1, 100}, cuda(1)};
    state.add_tensor("turned", turned).value();
    for (int i = 0; i < 3; ++i) {
      state.add_tensor("small" + std::to_string(i), contiguous(small_, {i}, 0)).value();
    }
    state.add_tensor("scalar", contiguous(small_, {}, 0)).value();
    state.add_tensor("bias", TensorView::contiguous(bias_.data(), DType::kFloat32, {25})).value();
    state.add_value("step", Value(std::int64_t{4})).value();
    return state;
  }
  TensorView contiguous(const DeviceBytes& bytes, const Extents& sizes, int ordinal) const {
    return TensorView::contiguous(bytes.data(), DType::kFloat32, sizes, cuda(ordinal));
  }
  Bytes loaded(const std::string& key, const Extents& sizes, std::size_t bytes) const {
    Bytes found(bytes);
    StateDict target;
    target.add_tensor(key, TensorView::contiguous(static_cast<void*>(found.data()), DType::kFloat32, sizes)).value();
    load(directory_, target).value();
    return found;
  }
  void expect_saved() const {
    EXPECT_EQ(loaded("weight", {kSavedRows, kSavedColumns}, kSavedBytes), contents_);
    const Bytes turned = loaded("turned", {100, 300}, turned_contents_.size());
    for (std::size_t i = 0; i < 30'000; ++i) {
      const std::uint8_t* const element = turned_contents_.data() + 4 * ((i % 300) * 100 + i / 300);
      ASSERT_EQ(std::memcmp(turned.data() + 4 * i, element, 4), 0) << i;
    }
    EXPECT_EQ(loaded("small2", {2}, 8), std::vector(small_contents_.begin(), small_contents_.begin() + 8));
    EXPECT_EQ(loaded("scalar", {}, 4), std::vector(small_contents_.begin(), small_contents_.begin() + 4));
    EXPECT_EQ(loaded("bias", {25}, 100), Bytes(bias_bytes(), bias_bytes() + 100));
    EXPECT_TRUE(verify(directory_).value().problems.empty());
  }
  const std::uint8_t* bias_bytes() const { return reinterpret_cast<const std::uint8_t*>(bias_.data()); }

  storage::ScratchDirectory scratch_;
  std::filesystem::path directory_ = scratch_.path() / "checkpoint";
  void* trainer_ = fake_cuda_make_stream(0);
  void* second_trainer_ = fake_cuda_make_stream(1);
  Bytes contents_ = random_bytes(kSavedBytes, 1);
  Bytes turned_contents_ = random_bytes(120'000, 2);
  Bytes small_contents_ = random_bytes(16, 3);
  DeviceBytes weight_{0, contents_};
  DeviceBytes turned_{1, turned_contents_};
  DeviceBytes small_{0, small_contents_};
  std::vector<float> bias_ = std::vector<float>(25, 1.5F);
};

TEST_F(DeviceSaves, ArriveWithoutPageableCopies) {
  save(directory_, state()).value();
  expect_saved();
  EXPECT_EQ(fake_cuda_pageable_copies(), 0);
}

TEST_F(DeviceSaves, ArriveInAFileForEachItem) {
  SaveOptions options;
  options.file_per_item = true;
  save(directory_, state(), options).value();
  expect_saved();
}

TEST_F(DeviceSaves, AModelHoldsTheTensorsOfDevices) {
  StateDict model;
  model.add_tensor("weight", contiguous(weight_, {kSavedRows, kSavedColumns}, 0)).value();
  const TensorView turned{turned_.data(), DType::kFloat32, {100, 300}, {1, 100}, cuda(1)};
  model.add_tensor("turned", turned).value();
  model.add_tensor("bias", TensorView::contiguous(bias_.data(), DType::kFloat32, {25})).value();
  SaveOptions options;
  options.safetensors.emplace();
  save(directory_, model, options).value();
  EXPECT_EQ(loaded("weight", {kSavedRows, kSavedColumns}, kSavedBytes), contents_);
  EXPECT_EQ(loaded("bias", {25}, 100), Bytes(bias_bytes(), bias_bytes() + 100));
  EXPECT_TRUE(verify(directory_).value().problems.empty());
}

TEST_F(DeviceSaves, WaitForTheWorkOfTheCaller) {
  fake_cuda_write(weight_.address(), random_bytes(kSavedBytes, 8).data(), kSavedBytes);
  fake_cuda_launch_write(trainer_, weight_.address(), contents_.data(), kSavedBytes);
  save(directory_, state()).value();
  expect_saved();
}

// Two ranks with replicas on their devices: each rank writes a part of the tensor.
TEST_F(DeviceSaves, ReplicaPartsComeFromEachDevice) {
  const DeviceBytes replica(1, contents_);
  const std::vector<std::unique_ptr<Collectives>> group = make_local_group(2, std::chrono::seconds(30));
  std::vector<Result<SaveReport>> reports(2, Error(ErrorCode::kInternal, "not run"));
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      StateDict state;
      const DeviceBytes& mine = rank == 0 ? weight_ : replica;
      const TensorView view = contiguous(mine, {kSavedRows, kSavedColumns}, static_cast<int>(rank));
      state.add_tensor("weight", view, {.requires_grad = false, .replicated = true}).value();
      SaveOptions options;
      options.collectives = group[rank].get();
      reports[rank] = save(directory_, state, options);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Result<SaveReport>& report : reports) EXPECT_GT(report.value().bytes_written, kSavedBytes / 3);
  EXPECT_EQ(loaded("weight", {kSavedRows, kSavedColumns}, kSavedBytes), contents_);
}

TEST_F(DeviceSaves, ReportRefusedRegistrationOnce) {
  fake_cuda_fail("cuMemHostRegister_v2", 1, 2, 1);
  std::size_t reported = 0;
  for (int step = 0; step < 2; ++step) {
    reported += save(directory_, state()).value().warnings.size();
    expect_saved();
  }
  EXPECT_EQ(reported, 1U);
}

TEST_F(DeviceSaves, DriverErrorsNameTheKey) {
  save(directory_, state()).value();
  for (const char* function : {"cuEventRecord", "cuMemcpyDtoHAsync_v2", "cuEventQuery", "cuStreamCreate"}) {
    fake_cuda_reset();
    fake_cuda_fail(function, 1, 700, 0);
    SaveOptions options;
    options.overwrite = true;
    const Result<SaveReport> report = save(directory_, state(), options);
    ASSERT_FALSE(report) << function;
    EXPECT_EQ(report.error().code(), ErrorCode::kUnavailable) << function;
    EXPECT_TRUE(report.error().key()) << function;
  }
  fake_cuda_reset();
  expect_saved();
}

TEST_F(DeviceSaves, CaptureFailsTheSaveNotTheGraph) {
  fake_cuda_begin_capture(trainer_);
  EXPECT_EQ(save(directory_, state()).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(fake_cuda_end_capture(trainer_), 1);
}

TEST_F(DeviceSaves, HangingKernelFailsAtDeadline) {
  fake_cuda_launch_hang(trainer_);
  SaveOptions options;
  options.deadlines.progress = std::chrono::milliseconds(300);
  const Result<SaveReport> report = save(directory_, state(), options);
  EXPECT_EQ(report.error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(report.error().key(), "weight");
  EXPECT_NE(std::string(report.error().what()).find("cuda:0"), std::string::npos);
  fake_cuda_release(trainer_);
  save(directory_, state()).value();
  expect_saved();
}

TEST_F(DeviceSaves, HangingKernelIsInterruptible) {
  fake_cuda_launch_hang(trainer_);
  SaveOptions options;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
  options.interrupted = [end] { return std::chrono::steady_clock::now() >= end; };
  EXPECT_EQ(save(directory_, state(), options).error().code(), ErrorCode::kCancelled);
  fake_cuda_release(trainer_);
}

}  // namespace
}  // namespace cairn

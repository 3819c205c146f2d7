// Loads into tensors on devices, with the stand-in driver.
#include <cairn/cairn.h>
#include <fake_cuda/device_bytes.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "load/device_targets.h"
#include "storage/testing/scratch_directory.h"

namespace cairn {
namespace {

using fake_cuda::Bytes;
using fake_cuda::DeviceBytes;
using fake_cuda::random_bytes;

constexpr std::int64_t kRows = 3000;
constexpr std::int64_t kColumns = 5000;  // 60 MB: more than the buffers in flight
constexpr std::size_t kWeightBytes = std::size_t{4} * kRows * kColumns;

class DeviceLoads : public testing::Test {
 protected:
  void SetUp() override {
    fake_cuda_reset();
    StateDict state;
    state.add_tensor("weight", TensorView::contiguous(contents_.data(), DType::kFloat32, {kRows, kColumns})).value();
    state.add_tensor("half", TensorView::contiguous(half_.data(), DType::kBFloat16, {4})).value();
    save(directory_, state).value();
  }
  void TearDown() override { fake_cuda_reset(); }

  Device cuda(int ordinal) const {
    return Device::cuda(ordinal, reinterpret_cast<std::uintptr_t>(ordinal == 0 ? trainer_ : second_trainer_));
  }
  StateDict whole(const DeviceBytes& target, int ordinal = 0) const {
    StateDict state;
    state.add_tensor("weight", TensorView::contiguous(target.data(), DType::kFloat32, {kRows, kColumns}, cuda(ordinal)))
        .value();
    return state;
  }

  storage::ScratchDirectory scratch_;
  std::filesystem::path directory_ = scratch_.path() / "checkpoint";
  void* trainer_ = fake_cuda_make_stream(0);
  void* second_trainer_ = fake_cuda_make_stream(1);
  Bytes contents_ = random_bytes(kWeightBytes, 1);
  std::vector<std::uint16_t> half_ = {0x3f80, 0x4000, 0xbf80, 0};  // 1, 2, -1, 0
};

TEST_F(DeviceLoads, ArrivesAfterTheCallersWork) {
  for (const Verify verify : {Verify::kNeeded, Verify::kFull, Verify::kNone}) {
    const DeviceBytes target(0, Bytes(kWeightBytes));
    fake_cuda_launch_write(trainer_, target.address(), random_bytes(kWeightBytes, 2).data(), kWeightBytes);
    StateDict state = whole(target);
    LoadOptions options;
    options.verify = verify;
    load(directory_, state, options).value();
    fake_cuda_run(trainer_);  // would overwrite the target if the load had not waited
    EXPECT_EQ(target.read(), contents_);
  }
  EXPECT_EQ(fake_cuda_pageable_copies(), 0);
}

TEST_F(DeviceLoads, PartsOnSeveralDevicesInStrides) {
  // Columns 1000 to 1999 into a wider matrix of device 0, and rows 7 to 9 transposed on device 1.
  const DeviceBytes wide(0, Bytes(std::size_t{4} * kRows * 1500));
  const DeviceBytes turned(1, Bytes(std::size_t{4} * 3 * kColumns));
  StateDict state;
  const TensorView columns{wide.data(), DType::kFloat32, {kRows, 1000}, {1500, 1}, cuda(0)};
  const TensorView rows{turned.data(), DType::kFloat32, {3, kColumns}, {1, 3}, cuda(1)};
  state.add_chunk("weight", columns, {kRows, kColumns}, {0, 1000}).value();
  state.add_chunk("weight", rows, {kRows, kColumns}, {7, 0}).value();
  load(directory_, state).value();
  const Bytes found = wide.read();
  const Bytes found_turned = turned.read();
  const auto element = [&](std::int64_t row, std::int64_t column) {
    return contents_.data() + 4 * (row * kColumns + column);
  };
  for (std::int64_t row = 0; row < kRows; ++row) {
    ASSERT_EQ(std::memcmp(found.data() + 4 * row * 1500, element(row, 1000), 4000), 0) << row;
    const Bytes gap(found.begin() + 4 * (row * 1500 + 1000), found.begin() + 4 * (row + 1) * 1500);
    ASSERT_EQ(gap, Bytes(2000)) << row;
  }
  for (std::int64_t i = 0; i < 3 * kColumns; ++i) {
    ASSERT_EQ(std::memcmp(found_turned.data() + 4 * i, element(7 + i % 3, i / 3), 4), 0) << i;
  }
}

TEST_F(DeviceLoads, PlannedEntryWaitsForItsCopies) {
  const DeviceBytes target(0, Bytes(kWeightBytes));
  const DeviceBytes half(0, Bytes(8));
  StateDict state = whole(target);
  state.add_tensor("half", TensorView::contiguous(half.data(), DType::kBFloat16, {4}, cuda(0))).value();
  const Checkpoint checkpoint = open_to_load(directory_).value();
  PlannedLoad plan = plan_load(checkpoint, state).value();
  Bytes weight_when_told;
  Bytes half_when_told;
  plan.run([&](std::size_t entry, const Result<void>& outcome) {
        EXPECT_TRUE(outcome);
        (entry == 0 ? weight_when_told : half_when_told) = (entry == 0 ? target : half).read();
      })
      .value();
  EXPECT_EQ(weight_when_told, contents_);
  EXPECT_EQ(std::memcmp(half_when_told.data(), half_.data(), 8), 0);
}

TEST_F(DeviceLoads, ElementsAreConvertedOnTheirWay) {
  const DeviceBytes target(0, Bytes(16));
  StateDict state;
  state.add_tensor("half", TensorView::contiguous(target.data(), DType::kFloat32, {4}, cuda(0))).value();
  load(directory_, state).value();
  const Bytes found = target.read();
  const std::vector<float> expected = {1.0F, 2.0F, -1.0F, 0.0F};
  EXPECT_EQ(std::memcmp(found.data(), expected.data(), 16), 0);
}

TEST_F(DeviceLoads, ARefusedRegistrationIsSaidOnce) {
  fake_cuda_fail("cuMemHostRegister_v2", 1, 2, 1);
  std::size_t said = 0;
  for (int i = 0; i < 2; ++i) {
    const DeviceBytes target(0, Bytes(kWeightBytes));
    StateDict state = whole(target);
    said += load(directory_, state).value().warnings.size();
    EXPECT_EQ(target.read(), contents_);
  }
  EXPECT_EQ(said, 1U);
}

TEST_F(DeviceLoads, CaptureFailsAndKeepsTargets) {
  const Bytes before = random_bytes(kWeightBytes, 3);
  const DeviceBytes target(0, before);
  StateDict state = whole(target);
  fake_cuda_begin_capture(trainer_);
  const Result<LoadReport> report = load(directory_, state);
  EXPECT_EQ(fake_cuda_end_capture(trainer_), 1);
  EXPECT_EQ(report.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(report.error().key(), "weight");
  EXPECT_EQ(target.read(), before);
}

// The stream of the caller carries out the copies that it waits for.
TEST_F(DeviceLoads, LaterWorkFollowsStoppedCopies) {
  const DeviceBytes target(0, Bytes(kWeightBytes));
  StateDict state = whole(target);
  fake_cuda_launch_hang(trainer_);
  LoadOptions options;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  options.interrupted = [end] { return std::chrono::steady_clock::now() >= end; };
  EXPECT_EQ(load(directory_, state, options).error().code(), ErrorCode::kCancelled);
  fake_cuda_release(trainer_);
  fake_cuda_run(trainer_);
  const Bytes found = target.read();
  std::size_t equal = 0;
  while (equal < found.size() && found[equal] == contents_[equal]) ++equal;
  EXPECT_GE(equal, std::size_t{1} << 20);
}

TEST_F(DeviceLoads, InterruptedWithoutRegistration) {
  const DeviceBytes target(0, Bytes(kWeightBytes));
  StateDict state = whole(target);
  fake_cuda_fail("cuMemHostRegister_v2", 1, 2, 1);
  fake_cuda_launch_hang(trainer_);
  LoadOptions options;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  options.interrupted = [end] { return std::chrono::steady_clock::now() >= end; };
  EXPECT_EQ(load(directory_, state, options).error().code(), ErrorCode::kCancelled);
  EXPECT_EQ(fake_cuda_pageable_copies(), 0);
  fake_cuda_release(trainer_);
}

// The driver's error does not say whether the copy has ended, so no later load may fill the buffer of that copy.
TEST_F(DeviceLoads, BufferOfAFailedCopyIsRetired) {
  const Bytes later = random_bytes(kWeightBytes, 4);
  StateDict source;
  source.add_tensor("weight", TensorView::contiguous(later.data(), DType::kFloat32, {kRows, kColumns})).value();
  save(scratch_.path() / "later", source).value();

  const DeviceBytes target(0, Bytes(kWeightBytes));
  StateDict state = whole(target);
  fake_cuda_launch_hang(trainer_);
  fake_cuda_fail("cuEventQuery", 1, 700, 0);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(load(directory_, state).error().code(), ErrorCode::kUnavailable);
  // The failure of one thread ends the waits of the other threads for their copies.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, checkpointer::DeviceTargets::kStall / 2);

  const DeviceBytes later_target(0, Bytes(kWeightBytes));
  StateDict later_state = whole(later_target);
  LoadOptions options;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  options.interrupted = [end] { return std::chrono::steady_clock::now() >= end; };
  EXPECT_EQ(load(scratch_.path() / "later", later_state, options).error().code(), ErrorCode::kCancelled);

  fake_cuda_release(trainer_);
  fake_cuda_run(trainer_);
  const Bytes found = target.read();
  std::size_t foreign = 0;
  for (std::size_t i = 0; i < found.size(); ++i) foreign += found[i] != contents_[i] && found[i] != 0;
  EXPECT_EQ(foreign, 0U);
}

TEST_F(DeviceLoads, ErrorsOfTheDriverNameTheKey) {
  for (const char* function : {"cuEventRecord", "cuMemcpyHtoDAsync_v2", "cuEventQuery", "cuStreamCreate"}) {
    fake_cuda_reset();
    const DeviceBytes target(0, Bytes(kWeightBytes));
    StateDict state = whole(target);
    fake_cuda_fail(function, 1, 700, 0);
    const Result<LoadReport> report = load(directory_, state);
    ASSERT_FALSE(report) << function;
    EXPECT_EQ(report.error().code(), ErrorCode::kUnavailable) << function;
    EXPECT_EQ(report.error().key(), "weight") << function;
  }
}

TEST_F(DeviceLoads, RefusesATensorOfAnotherDevice) {
  const DeviceBytes target(1, Bytes(kWeightBytes));
  StateDict state = whole(target, 0);
  EXPECT_EQ(load(directory_, state).error().code(), ErrorCode::kInvalidArgument);
}

TEST_F(DeviceLoads, ADamagedByteIsFoundAsOnTheCpu) {
  for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
    if (entry.file_size() < kWeightBytes) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(kWeightBytes / 2));
    file.write("damage!", 7);
  }
  const DeviceBytes target(0, Bytes(kWeightBytes));
  StateDict state = whole(target);
  const Result<LoadReport> report = load(directory_, state);
  EXPECT_EQ(report.error().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(report.error().key(), "weight");
}

}  // namespace
}  // namespace cairn

// The staging of tensors on devices, with the stand-in driver.
#include <fake_cuda/device_bytes.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <future>
#include <vector>

#include "core/region.h"
#include "device/await_event.h"
#include "staging/snapshot_copy.h"

namespace cairn::staging {
namespace {

using fake_cuda::Bytes;
using fake_cuda::DeviceBytes;
using fake_cuda::random_bytes;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

std::uintptr_t number_of(void* stream) { return reinterpret_cast<std::uintptr_t>(stream); }

class DeviceStagingTest : public testing::Test {
 protected:
  void SetUp() override { fake_cuda_reset(); }
  void TearDown() override { fake_cuda_reset(); }

  // Adds a tensor of bytes on a device, or with `row` and `pitch` the first `row` bytes of every `pitch` bytes.
  void add(int ordinal, std::size_t bytes, std::size_t row = 0, std::size_t pitch = 0) {
    contents_.push_back(random_bytes(bytes, contents_.size()));
    tensors_.emplace_back(ordinal, contents_.back());
    const Device device = Device::cuda(ordinal, number_of(trainers_[static_cast<std::size_t>(ordinal)]));
    TensorView view =
        TensorView::contiguous(tensors_.back().data(), DType::kUInt8, {static_cast<std::int64_t>(bytes)}, device);
    Bytes expected = contents_.back();
    if (pitch != 0) {
      view.sizes = {static_cast<std::int64_t>(bytes / pitch), static_cast<std::int64_t>(row)};
      view.strides = {static_cast<std::int64_t>(pitch), 1};
      expected.resize(bytes / pitch * row);
      gather(Region(view.sizes, row_major_strides(view.sizes), view.strides), 1,
             std::as_bytes(std::span(contents_.back())).data(), 0, std::as_writable_bytes(std::span(expected)));
    }
    add(view, std::move(expected));
  }
  void add_of_cpu(std::size_t bytes) {
    contents_.push_back(random_bytes(bytes, contents_.size()));
    const void* const data = contents_.back().data();
    add(TensorView::contiguous(data, DType::kUInt8, {static_cast<std::int64_t>(bytes)}), contents_.back());
  }
  void add(TensorView view, Bytes expected) {
    keys_.push_back("tensor" + std::to_string(keys_.size()));
    views_.push_back(std::move(view));
    items_.push_back({&views_.back(), {}, arena_bytes_, keys_.back()});
    arena_bytes_ += (expected.size() + 127) / 64 * 64;
    expected_.push_back(std::move(expected));
  }
  void add_many() {
    add(0, 37 * kMiB + 5);
    add_of_cpu(5 * kMiB);
    for (std::size_t i = 0; i < 300; ++i) add(i % 7 == 0 ? 1 : 0, 10 + 37 * i);
    add(1, 3 * kMiB, 48, 256);
    add(1, 6 * kMiB + 3);
    add(0, 0);
  }

  std::shared_ptr<Arena> arena(std::uint64_t registered_pieces) {
    auto made = Arena::make().value();
    made->fit(arena_bytes_).value();
    made->make_present(0, arena_bytes_).value();
    made->note_present(arena_bytes_);
    device::Driver& driver = *device::driver_of(DeviceKind::kCuda).value();
    const auto registration = made->begin_registration(driver, 0);
    for (std::uint64_t i = 0; i < registered_pieces; ++i) (void)registration->register_next();
    return made;
  }
  std::unique_ptr<DeviceSources> mark(std::optional<std::uint64_t> seed = {}) {
    return DeviceSources::mark(items_, links_, seed).value();
  }
  Result<void> copy(Arena& arena, DeviceSources& devices, StagingFence* fence = nullptr) {
    CopyOptions options;
    options.arena_bytes = arena_bytes_;
    options.thread_count = 3;
    options.devices = &devices;
    options.fence = fence;
    options.stall_max = stall_max_;
    return copy_into(arena, items_, options);
  }
  void expect_staged(const Arena& arena) const {
    for (std::size_t i = 0; i < items_.size(); ++i) {
      const auto staged = arena.bytes().subspan(items_[i].arena_offset, expected_[i].size());
      if (staged.empty()) continue;
      EXPECT_EQ(std::memcmp(staged.data(), expected_[i].data(), staged.size()), 0) << keys_[i];
    }
    EXPECT_EQ(arena.staged(), Arena::kAll);
  }
  // Queues a kernel of the trainer that overwrites a tensor.
  void launch_overwrite(std::size_t index) {
    const Bytes bytes = random_bytes(expected_[index].size(), 1000 + index);
    fake_cuda_launch_write(reinterpret_cast<void*>(views_[index].device.stream),
                           reinterpret_cast<std::uintptr_t>(views_[index].data), bytes.data(), bytes.size());
  }

  std::vector<void*> trainers_{fake_cuda_make_stream(0), fake_cuda_make_stream(1)};
  std::deque<Bytes> contents_;
  std::deque<DeviceBytes> tensors_;
  std::deque<std::string> keys_;
  std::deque<TensorView> views_;
  std::vector<CopyItem> items_;
  std::vector<Bytes> expected_;
  std::uint64_t arena_bytes_ = 64;
  std::chrono::milliseconds stall_max_ = std::chrono::minutes(1);
  std::shared_ptr<device::Links> links_ = std::make_shared<device::Links>();
};

TEST_F(DeviceStagingTest, WritesIntoARegisteredArena) {
  add_many();
  const auto target = arena(100);
  const auto devices = mark(17);
  copy(*target, *devices).value();
  expect_staged(*target);
  EXPECT_EQ(fake_cuda_pageable_copies(), 0);
}

TEST_F(DeviceStagingTest, BounceBuffersIfUnregistered) {
  add_many();
  const auto target = arena(0);
  const auto devices = mark(18);
  copy(*target, *devices).value();
  expect_staged(*target);
  EXPECT_EQ(fake_cuda_pageable_copies(), 0);
}

TEST_F(DeviceStagingTest, PartlyRegisteredArena) {
  add_many();
  const auto target = arena(2);
  const auto devices = mark(19);
  copy(*target, *devices).value();
  expect_staged(*target);
}

TEST_F(DeviceStagingTest, DriverThatRegistersNothing) {
  add_many();
  fake_cuda_fail("cuMemHostRegister_v2", 1, 2, 1);
  const auto target = arena(1);
  const auto devices = mark(20);
  copy(*target, *devices).value();
  expect_staged(*target);
}

TEST_F(DeviceStagingTest, CpuTensorsHaveNoDeviceSources) {
  add_of_cpu(100);
  EXPECT_EQ(mark(1), nullptr);
}

TEST_F(DeviceStagingTest, CopiesFollowEarlierWork) {
  add(0, kMiB);
  const auto target = arena(10);
  expected_[0] = random_bytes(kMiB, 77);
  fake_cuda_launch_write(trainers_[0], tensors_[0].address(), expected_[0].data(), kMiB);
  const auto devices = mark(3);
  copy(*target, *devices).value();
  expect_staged(*target);
}

TEST_F(DeviceStagingTest, FenceHoldsTheStreamAlone) {
  for (int i = 0; i < 3; ++i) add(i % 2, 20 * kMiB);
  const auto target = arena(100);
  const auto devices = mark(5);
  StagingFence fence;
  auto copied = std::async(std::launch::async, [&] { return copy(*target, *devices, &fence); });
  ASSERT_TRUE(fence.wait_open(std::chrono::seconds(60)));
  for (int ordinal = 0; ordinal < 2; ++ordinal) {
    void* const trainer = trainers_[static_cast<std::size_t>(ordinal)];
    fence.make_wait(Device::cuda(ordinal, number_of(trainer))).value();
  }
  for (std::size_t i = 0; i < 3; ++i) launch_overwrite(i);
  for (void* const trainer : trainers_) fake_cuda_run(trainer);
  copied.get().value();
  expect_staged(*target);
}

TEST_F(DeviceStagingTest, RefusesAFenceDuringACapture) {
  add(0, kMiB);
  const auto target = arena(10);
  const auto devices = mark(5);
  StagingFence fence;
  copy(*target, *devices, &fence).value();
  fake_cuda_begin_capture(trainers_[0]);
  EXPECT_EQ(fence.make_wait(Device::cuda(0, number_of(trainers_[0]))).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(fake_cuda_end_capture(trainers_[0]), 1);
}

TEST_F(DeviceStagingTest, DetectsAWriteBeforeTheCopy) {
  for (const std::uint64_t pieces : {0U, 100U}) {
    add(0, 3 * kMiB);
    add(0, 1000);
    add(0, 2000, 10, 20);
    add(0, 24);
    const std::size_t last = items_.size() - 1;
    const auto target = arena(pieces);
    const auto devices = mark(5);
    device::await(devices->lane_of(0).stream.mark().value()).value();  // the samples are there
    for (const std::size_t index : {last - 3, last - 2, last}) launch_overwrite(index);
    fake_cuda_run(trainers_[0]);
    const Result<void> copied = copy(*target, *devices);
    ASSERT_FALSE(copied);
    EXPECT_EQ(copied.error().code(), ErrorCode::kInvalidArgument);
    for (const std::size_t index : {last - 3, last - 2, last}) {
      EXPECT_NE(copied.error().message().find("'" + keys_[index] + "'"), std::string::npos) << keys_[index];
    }
    EXPECT_EQ(copied.error().message().find("'" + keys_[last - 1] + "'"), std::string::npos);
  }
}

TEST_F(DeviceStagingTest, RefusesACaptureWithTheKey) {
  add(0, 100);
  fake_cuda_begin_capture(trainers_[0]);
  const auto devices = DeviceSources::mark(items_, links_, std::nullopt);
  ASSERT_FALSE(devices);
  EXPECT_EQ(devices.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(devices.error().key(), "tensor0");
  EXPECT_EQ(fake_cuda_end_capture(trainers_[0]), 1);
}

TEST_F(DeviceStagingTest, RefusesAViewOfAnotherDevice) {
  add(1, 100);
  views_[0].device.ordinal = 0;
  const auto devices = DeviceSources::mark(items_, links_, std::nullopt);
  EXPECT_EQ(devices.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(devices.error().actual(), "cuda:1");
}

TEST_F(DeviceStagingTest, DriverErrorNamesKeyAndDevice) {
  add(1, 30 * kMiB);
  for (const std::uint64_t pieces : {0U, 100U}) {
    const auto target = arena(pieces);
    const auto devices = mark();
    fake_cuda_fail("cuMemcpyDtoHAsync_v2", 1, 719, 0);
    const Result<void> copied = copy(*target, *devices);
    ASSERT_FALSE(copied);
    EXPECT_EQ(copied.error().key(), "tensor0");
    EXPECT_NE(copied.error().message().find("cuda:1"), std::string::npos);
    EXPECT_TRUE(devices->settle(std::chrono::seconds(10)));
  }
}

TEST_F(DeviceStagingTest, FailedKernelFailsTheStaging) {
  add(1, 3 * kMiB);
  const auto target = arena(100);
  const auto devices = mark(1);
  fake_cuda_break(1, 710);
  const Result<void> copied = copy(*target, *devices);
  ASSERT_FALSE(copied);
  EXPECT_NE(copied.error().message().find("CUDA_ERROR_ASSERT"), std::string::npos);
  EXPECT_EQ(copied.error().key(), "tensor0");
  EXPECT_TRUE(devices->settle(std::chrono::seconds(10)));
}

TEST_F(DeviceStagingTest, HangingKernelStallsTheCopies) {
  stall_max_ = std::chrono::milliseconds(100);
  for (const std::uint64_t pieces : {0U, 100U}) {
    add(0, 3 * kMiB);
    const auto target = arena(pieces);
    void* const trainer = trainers_[0];
    fake_cuda_launch_hang(trainer);
    const auto devices = mark(1);
    const Result<void> copied = copy(*target, *devices);
    ASSERT_FALSE(copied);
    EXPECT_EQ(copied.error().code(), ErrorCode::kUnavailable);
    EXPECT_NE(copied.error().message().find("no copy from cuda:0 ended"), std::string::npos);
    EXPECT_FALSE(devices->settle(std::chrono::milliseconds(0)));
    fake_cuda_release(trainer);
    EXPECT_TRUE(devices->settle(std::chrono::seconds(10)));
  }
}

TEST_F(DeviceStagingTest, HangingKernelBlocksNoCall) {
  stall_max_ = std::chrono::milliseconds(100);
  fake_cuda_fail("cuMemHostRegister_v2", 1, 2, 1);
  add(0, 3 * kMiB);
  const auto target = arena(1);
  fake_cuda_launch_hang(trainers_[0]);
  const auto devices = mark(1);
  const Result<void> copied = copy(*target, *devices);
  ASSERT_FALSE(copied);
  EXPECT_EQ(copied.error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(fake_cuda_pageable_copies(), 0);
  fake_cuda_release(trainers_[0]);
  EXPECT_TRUE(devices->settle(std::chrono::seconds(10)));
}

TEST_F(DeviceStagingTest, SamplesTakeFewPlacesOfAStream) {
  for (int i = 0; i < 1200; ++i) add(0, i % 4 == 0 ? 2 * kMiB : 1000);
  const auto devices = mark(1);
  EXPECT_LE(fake_cuda_calls("cuMemcpy2DAsync_v2") + fake_cuda_calls("cuMemcpyDtoHAsync_v2"), 300);
  EXPECT_TRUE(devices->settle(std::chrono::seconds(10)));
}

TEST_F(DeviceStagingTest, RegistersNoMemoryWithoutPages) {
  const std::size_t before = fake_cuda_registered_bytes();
  auto made = Arena::make().value();
  made->fit(100 * kMiB).value();
  made->note_present(20 * kMiB);
  device::Driver& driver = *device::driver_of(DeviceKind::kCuda).value();
  made->begin_registration(driver, 0)->register_all({}, 0).value();
  EXPECT_EQ(fake_cuda_registered_bytes() - before, 32 * kMiB);
  EXPECT_TRUE(made->is_registered(20 * kMiB));
  made->note_present(100 * kMiB);
  made->begin_registration(driver, 0)->register_all({}, 0).value();
  EXPECT_TRUE(made->is_registered(100 * kMiB));
}

}  // namespace
}  // namespace cairn::staging

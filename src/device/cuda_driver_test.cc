#include "device/cuda_driver.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <vector>

#include <fake_cuda/device_bytes.h>
#include "device/await_event.h"
#include "device/stream.h"
#include "os/memory_file.h"

namespace cairn::device {
namespace {

using fake_cuda::Bytes;
using fake_cuda::DeviceBytes;
using fake_cuda::random_bytes;

constexpr std::size_t kBytes = 8192;

class CudaDriverTest : public testing::Test {
 protected:
  void SetUp() override {
    fake_cuda_reset();
    memory_.resize(kBytes).value();
    driver_.register_host(0, memory_.bytes()).value();
  }
  void TearDown() override {
    fake_cuda_reset();
    driver_.unregister_host(0, memory_.bytes().data());
  }

  Bytes host() const {
    const auto* const first = reinterpret_cast<const std::uint8_t*>(memory_.bytes().data());
    return {first, first + memory_.bytes().size()};
  }

  Driver& driver_ = *driver_of(DeviceKind::kCuda).value();
  os::MemoryFile memory_ = os::MemoryFile::create("test").value();
};

TEST_F(CudaDriverTest, EventEndsAfterItsCopy) {
  const auto bytes = random_bytes(kBytes, 1);
  const DeviceBytes source(1, bytes);
  Stream stream = Stream::make(driver_, 1).value();
  const Copy copy{memory_.bytes().data(), source.address(), kBytes};
  stream.copy(Direction::kToHost, {&copy, 1}).value();
  const Event copied = stream.mark().value();
  EXPECT_FALSE(copied.is_done().value());
  await(copied).value();
  EXPECT_EQ(host(), bytes);
  EXPECT_EQ(fake_cuda_pageable_copies(), 0);
}

TEST_F(CudaDriverTest, CopiesToTheDeviceArrive) {
  const DeviceBytes target(0, Bytes(kBytes));
  const auto bytes = random_bytes(kBytes, 2);
  std::memcpy(memory_.bytes().data(), bytes.data(), kBytes);
  Stream stream = Stream::make(driver_, 0).value();
  const Copy copy{memory_.bytes().data(), target.address(), kBytes};
  stream.copy(Direction::kToDevice, {&copy, 1}).value();
  await(stream.mark().value()).value();
  EXPECT_EQ(target.read(), bytes);
}

TEST_F(CudaDriverTest, WaitsForTheWorkOfTheTrainer) {
  const DeviceBytes source(0, Bytes(kBytes));
  void* const trainer = fake_cuda_make_stream(0);
  const auto bytes = random_bytes(kBytes, 3);
  fake_cuda_launch_write(trainer, source.address(), bytes.data(), kBytes);
  const Event written = mark_of(Device::cuda(0, reinterpret_cast<std::uintptr_t>(trainer))).value();
  Stream stream = Stream::make(driver_, 0).value();
  stream.wait_for(written).value();
  const Copy copy{memory_.bytes().data(), source.address(), kBytes};
  stream.copy(Direction::kToHost, {&copy, 1}).value();
  await(stream.mark().value()).value();
  EXPECT_EQ(host(), bytes);
}

TEST_F(CudaDriverTest, ManyCopiesTakeOneBatchCall) {
  const auto bytes = random_bytes(kBytes, 4);
  const DeviceBytes source(0, bytes);
  std::vector<Copy> copies;
  for (std::size_t i = 0; i < kBytes; i += 64) copies.push_back({memory_.bytes().data() + i, source.address() + i, 64});
  Stream stream = Stream::make(driver_, 0).value();
  stream.copy(Direction::kToHost, copies).value();
  await(stream.mark().value()).value();
  EXPECT_EQ(host(), bytes);
  EXPECT_EQ(fake_cuda_calls("cuMemcpyBatchAsync_v2"), 1);
  EXPECT_EQ(fake_cuda_calls("cuMemcpyDtoHAsync_v2"), 0);
}

TEST_F(CudaDriverTest, FindsTheDeviceOfAnAddress) {
  const DeviceBytes memory(1, Bytes(kBytes));
  const DeviceMemory found = driver_.memory_at(static_cast<std::byte*>(memory.data()) + 100).value();
  EXPECT_EQ(found.ordinal, 1);
  EXPECT_EQ(found.begin, memory.address());
  EXPECT_EQ(found.bytes, kBytes);
  EXPECT_EQ(driver_.memory_at(&found).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(driver_.memory_at(memory_.bytes().data()).error().code(), ErrorCode::kInvalidArgument);
}

TEST_F(CudaDriverTest, AStreamUnderCaptureIsRefused) {
  void* const trainer = fake_cuda_make_stream(0);
  fake_cuda_begin_capture(trainer);
  const auto mark = mark_of(Device::cuda(0, reinterpret_cast<std::uintptr_t>(trainer)));
  EXPECT_EQ(mark.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(mark.error().message().find("captured into a CUDA graph"), std::string::npos);
  EXPECT_EQ(fake_cuda_end_capture(trainer), 1);
}

TEST_F(CudaDriverTest, LeavesACaptureOfAnotherStream) {
  const DeviceBytes source(0, Bytes(kBytes));
  void* const trainer = fake_cuda_make_stream(0);
  fake_cuda_begin_capture(trainer);
  Stream stream = Stream::make(driver_, 0).value();
  const Copy copy{memory_.bytes().data(), source.address(), kBytes};
  stream.copy(Direction::kToHost, {&copy, 1}).value();
  await(stream.mark().value()).value();
  auto further = os::MemoryFile::create("test").value();
  further.resize(kBytes).value();
  driver_.register_host(0, further.bytes()).value();
  driver_.unregister_host(0, further.bytes().data());
  EXPECT_EQ(fake_cuda_end_capture(trainer), 1);
}

TEST_F(CudaDriverTest, ErrorNamesDeviceAndText) {
  fake_cuda_fail("cuEventCreate", 1, 2, 0);
  const auto event = Event::make(driver_, 1);
  EXPECT_EQ(event.error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(event.error().message(),
            "CUDA error 2 on cuda:1 (CUDA_ERROR_OUT_OF_MEMORY): an error of the stand-in driver, in cuEventCreate");
}

TEST_F(CudaDriverTest, FailedKernelEndsAWait) {
  const DeviceBytes source(1, Bytes(kBytes));
  Stream stream = Stream::make(driver_, 1).value();
  const Copy copy{memory_.bytes().data(), source.address(), kBytes};
  stream.copy(Direction::kToHost, {&copy, 1}).value();
  const Event copied = stream.mark().value();
  fake_cuda_break(1, 710);
  EXPECT_NE(await(copied).error().message().find("CUDA_ERROR_ASSERT"), std::string::npos);
}

TEST_F(CudaDriverTest, InterruptsAWaitForAKernel) {
  void* const trainer = fake_cuda_make_stream(0);
  fake_cuda_launch_hang(trainer);
  const Event event = mark_of(Device::cuda(0, reinterpret_cast<std::uintptr_t>(trainer))).value();
  EXPECT_EQ(await(event, [] { return true; }).error().code(), ErrorCode::kCancelled);
  fake_cuda_release(trainer);
  await(event).value();
}

TEST_F(CudaDriverTest, ForkedChildMakesNoDriverCall) {
  const pid_t child = fork();
  if (child == 0) {
    const auto stream = Stream::make(driver_, 0);
    const auto found = driver_.memory_at(&child);
    const bool refused = !stream && !found && stream.error().code() == ErrorCode::kUnavailable;
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(CudaDriverTest, AMissingDeviceIsRefused) {
  EXPECT_EQ(Stream::make(driver_, 7).error().code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace cairn::device

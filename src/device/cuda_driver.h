// CudaDriver: the CUDA driver, loaded at run time from libcuda.so.1.
//
// 1. The library is loaded, and the driver is initialised, at the first call of loaded(). The library is never
// unloaded.
// 2. Every call makes the primary context of its device current for the duration of the call, and sets the thread's
//    mode of stream capture to relaxed. Without the relaxed mode, a query of an event or a registration fails while any
//    thread captures a graph in the global mode, and breaks that graph.
// 3. A call in a child made by fork fails without a call of the library: the driver does not survive a fork.
#pragma once

#include <cairn/result.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>

#include "device/cuda_abi.h"
#include "device/driver.h"

namespace cairn::device {

class CudaDriver : public Driver {
 public:
  // The driver of this process. kUnavailable: no library, or no device.
  static Result<Driver*> loaded();

  DeviceKind kind() const noexcept override { return DeviceKind::kCuda; }
  bool copies_in_batches() const noexcept override {
    return functions_.cuMemcpyBatchAsync_v2 != nullptr || functions_.cuMemcpyBatchAsync != nullptr;
  }
  Result<DeviceMemory> memory_at(const void* address) override;
  Result<void> register_host(std::int32_t ordinal, std::span<std::byte> memory) override;
  void unregister_host(std::int32_t ordinal, std::byte* begin) noexcept override;
  Result<StreamHandle> make_stream(std::int32_t ordinal) override;
  void destroy_stream(std::int32_t ordinal, StreamHandle stream) noexcept override;
  Result<EventHandle> make_event(std::int32_t ordinal) override;
  void destroy_event(std::int32_t ordinal, EventHandle event) noexcept override;
  Result<void> copy(std::int32_t ordinal, StreamHandle stream, Direction direction,
                    std::span<const Copy> copies) override;
  Result<void> record(std::int32_t ordinal, EventHandle event, StreamHandle stream) override;
  Result<void> make_wait(std::int32_t ordinal, StreamHandle stream, EventHandle event) override;
  Result<bool> is_done(std::int32_t ordinal, EventHandle event) override;
  Result<bool> is_capturing(std::int32_t ordinal, StreamHandle stream) override;

 private:
  class ContextScope;

  explicit CudaDriver(const cuda::Functions& functions);
  static Result<CudaDriver*> load();
  // `ordinal`: kNoDevice if the call names no device.
  Error error_of(cuda::Status status, const char* function, std::int32_t ordinal) const;
  Result<void> check(cuda::Status status, const char* function, std::int32_t ordinal) const;
  Result<cuda::Context> context_of(std::int32_t ordinal);
  // Calls `work` in the device's context; `work` returns a cuda::Status.
  template <typename Work>
  Result<void> in_context(std::int32_t ordinal, const char* function, Work&& work);
  template <typename Work>
  void free_in_context(std::int32_t ordinal, Work&& work) noexcept;
  cuda::Status copy_rows(const Copy& copy, Direction direction, cuda::Stream stream) const;
  cuda::Status copy_batch(std::span<const Copy> copies, Direction direction, cuda::Stream stream) const;

  static constexpr std::int32_t kDevicesMax = 64;
  static constexpr std::int32_t kNoDevice = -1;

  const cuda::Functions functions_;
  const pid_t process_id_;
  int device_count_ = 0;
  std::mutex mutex_;                                                // protects the retaining of contexts
  std::array<std::atomic<cuda::Context>, kDevicesMax> contexts_{};  // by ordinal; null: not retained yet
};

}  // namespace cairn::device

// Device: the processor whose memory holds a tensor, and the stream on which the tensor's user works.
#pragma once

#include <cstdint>
#include <string>

namespace cairn {

enum class DeviceKind : std::uint8_t { kCpu, kCuda };

// A plain value. Device{} is the memory of the CPU.
struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  std::int32_t ordinal = 0;  // kCuda: the number of the device in this process, as the CUDA driver counts
  // kCuda: the CUstream of the caller's work on the tensor; 0 is the legacy default stream. Work that the stream holds
  // at the time of a call comes before the call's copies. Cairn queues no copies on this stream.
  std::uintptr_t stream = 0;

  static Device cuda(std::int32_t ordinal, std::uintptr_t stream = 0) { return {DeviceKind::kCuda, ordinal, stream}; }
  bool is_cpu() const noexcept { return kind == DeviceKind::kCpu; }
  friend bool operator==(const Device&, const Device&) = default;
};

// "cpu", or "cuda:1".
inline std::string to_string(const Device& device) {
  return device.is_cpu() ? "cpu" : "cuda:" + std::to_string(device.ordinal);
}

}  // namespace cairn

// DeviceBytes: bytes on an imaginary device, for tests.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <fake_cuda/fake_cuda.h>

namespace cairn::fake_cuda {

inline std::vector<std::byte> random_bytes(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; i += sizeof(std::uint64_t)) {
    const std::uint64_t word = random();
    std::memcpy(bytes.data() + i, &word, std::min(sizeof(word), count - i));
  }
  return bytes;
}

class DeviceBytes {
 public:
  DeviceBytes(int ordinal, const std::vector<std::byte>& bytes) : address_(fake_cuda_allocate(ordinal, bytes.size())) {
    if (!bytes.empty()) fake_cuda_write(address_, bytes.data(), bytes.size());
    size_ = bytes.size();
  }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  ~DeviceBytes() {
    if (address_ != 0) fake_cuda_free(address_);
  }

  std::uintptr_t address() const { return address_; }
  void* data() const { return reinterpret_cast<void*>(address_); }
  std::vector<std::byte> read() const {
    std::vector<std::byte> bytes(size_);
    fake_cuda_read(address_, bytes.data(), size_);
    return bytes;
  }

 private:
  std::uintptr_t address_ = 0;
  std::size_t size_ = 0;
};

}  // namespace cairn::fake_cuda

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

using Bytes = std::vector<std::uint8_t>;  // in contrast to std::byte, compared by memcmp()

// Bytes that repeat themselves after a prime number of bytes: bytes in a wrong place differ.
inline Bytes random_bytes(std::size_t count, std::uint64_t seed) {
  constexpr std::size_t kPeriod = 65'521;
  std::mt19937_64 random(seed);
  Bytes bytes(count);
  const std::size_t first = std::min(kPeriod, count);
  for (std::size_t i = 0; i < first; i += sizeof(std::uint64_t)) {
    const std::uint64_t word = random();
    std::memcpy(bytes.data() + i, &word, std::min(sizeof(word), first - i));
  }
  for (std::size_t i = kPeriod; i < count; i += kPeriod) {
    std::memcpy(bytes.data() + i, bytes.data(), std::min(kPeriod, count - i));
  }
  return bytes;
}

class DeviceBytes {
 public:
  DeviceBytes(int ordinal, const Bytes& bytes) : address_(fake_cuda_allocate(ordinal, bytes.size())) {
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
  Bytes read() const {
    Bytes bytes(size_);
    fake_cuda_read(address_, bytes.data(), size_);
    return bytes;
  }

 private:
  std::uintptr_t address_ = 0;
  std::size_t size_ = 0;
};

}  // namespace cairn::fake_cuda

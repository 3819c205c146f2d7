// DecodingBounds: the bounds on the cost of decoding an input that SECURITY.md promises. Every fuzz target and replay
// checks the bounds.
//
// From construction to destruction a DecodingBounds counts the allocations and the processor time of its thread. Beyond
// the bounds the destructor aborts, and a fuzzer keeps the input. A thread has at most one DecodingBounds at a time.
// The peak of allocated bytes counts, not the memory that was touched.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cairn::fuzz {

class DecodingBounds {
 public:
  static constexpr std::uint64_t kBytesPerInputByte = 64;
  // Of the state dict in a file of torch.save: each entry has a path and a name of its own.
  static constexpr std::uint64_t kBytesPerByteOfState = 800;
  static constexpr std::uint64_t kBytesMin = std::uint64_t{16} << 20;
  // Honest inputs take some 10 to 100 ns per byte, under the sanitizers ten times as long. A quadratic decoder exceeds
  // the bound from some 10 KiB on.
  static constexpr std::uint64_t kNanosecondsPerInputByte = 20'000;
  static constexpr std::uint64_t kNanosecondsMin = 500'000'000;

  explicit DecodingBounds(std::size_t input_bytes, std::uint64_t bytes_per_input_byte = kBytesPerInputByte);
  ~DecodingBounds();
  DecodingBounds(const DecodingBounds&) = delete;
  DecodingBounds& operator=(const DecodingBounds&) = delete;

 private:
  std::uint64_t input_bytes_;
  std::uint64_t bytes_per_input_byte_;
  std::uint64_t began_;  // in nanoseconds of the thread's processor time
};

}  // namespace cairn::fuzz

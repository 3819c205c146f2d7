// DecodingBounds: what decoding an input may cost: SECURITY.md's promise, held by every fuzz target and replay.
//
// From its making to its end it counts what this thread allocates and how much processor time it takes; beyond the
// bounds it aborts, so that a fuzzer keeps the input. One at a time per thread. The peak of live bytes counts, not what
// the processor has really touched.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cairn::fuzz {

class DecodingBounds {
 public:
  static constexpr std::uint64_t kBytesPerInputByte = 64;
  static constexpr std::uint64_t kBytesMin = std::uint64_t{16} << 20;
  // Honest inputs take some 10 to 100 ns for a byte, under the sanitizers ten times that. What is quadratic takes more
  // than this from some 10 KiB on.
  static constexpr std::uint64_t kNanosecondsPerInputByte = 20'000;
  static constexpr std::uint64_t kNanosecondsMin = 500'000'000;

  explicit DecodingBounds(std::size_t input_bytes);
  ~DecodingBounds();
  DecodingBounds(const DecodingBounds&) = delete;
  DecodingBounds& operator=(const DecodingBounds&) = delete;

 private:
  std::uint64_t input_bytes_;
  std::uint64_t began_;  // in nanoseconds of this thread's processor time
};

}  // namespace cairn::fuzz

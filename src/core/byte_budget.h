// ByteBudget: the memory that decoding one input may take, in proportion to the input's size.
//
// A reference costs an input a few bytes, and the decoder a whole copy of what it refers to: without a bound, kilobytes
// become gigabytes. Each decoder of an input from outside makes one budget of that input's size, and charges all that
// it copies or builds before it does so; so its memory and, since each step of it copies something, its time are
// bounded. One thread at a time.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "core/checked.h"

namespace cairn {

class ByteBudget {
 public:
  // The densest honest value, a list of one-byte elements (None, booleans), takes 57 bytes for each of its bytes: 48
  // for the Value, 8 for the node of the graph, 1 for a copy of the pickle. A `.metadata` of torch 2.13 with 200,000
  // chunks (1,000 ranks, 29 MB) is charged 1.5 times its size: a fortieth of the budget.
  static constexpr std::uint64_t kBytesPerInputByte = 60;
  // Inputs of a few hundred bytes may repeat themselves: an expanded tensor, a list of one object.
  static constexpr std::uint64_t kBytesMin = std::uint64_t{1} << 20;

  explicit ByteBudget(std::uint64_t input_bytes)
      : left_(checked_add(checked_multiply(input_bytes, kBytesPerInputByte).value_or(kUnlimited), kBytesMin)
                  .value_or(kUnlimited)) {}

  // Takes that many bytes off. kUnsafe if they are not left; the budget then stays as it is.
  Result<void> charge(std::uint64_t bytes) {
    if (bytes > left_) return exceeded(bytes);
    left_ -= bytes;
    return {};
  }
  // The same for `count` things of `bytes` each.
  Result<void> charge(std::uint64_t count, std::uint64_t bytes) {
    return charge(checked_multiply(count, bytes).value_or(kUnlimited));
  }

  std::uint64_t left() const noexcept { return left_; }

 private:
  static constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();
  [[gnu::cold]] Error exceeded(std::uint64_t bytes) const {
    return Error(ErrorCode::kUnsafe,
                 "decoded, this would be far larger than the input: it repeats what it holds by reference")
        .expected("at most " + std::to_string(left_) + " bytes more")
        .actual(bytes == kUnlimited ? std::string("more than 2^64") : std::to_string(bytes) + " bytes");
  }

  std::uint64_t left_;
};

// What the text of a std::string takes beside the object: nothing if it is short.
constexpr std::uint64_t heap_bytes(std::uint64_t text_bytes) {
  constexpr std::uint64_t kInlineMax = 15;
  constexpr std::uint64_t kBlockBytes = 16;  // what an allocation takes beside what it gives
  return text_bytes <= kInlineMax ? 0 : text_bytes + 1 + kBlockBytes;
}

}  // namespace cairn

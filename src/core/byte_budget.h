// ByteBudget: bounds the memory for decoding one input, in proportion to the input's size.
//
// A reference takes a few bytes of input, and the decoder copies the whole referenced value: without a bound, kilobytes
// become gigabytes. Every decoder of an untrusted input makes one budget of the input's size, and charges each copied
// or built object before making the object. The budget bounds the decoder's memory. It also bounds the time, because
// each step of a decoder copies some bytes. One thread at a time.
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
  // The densest honest value is a list of one-byte elements (None, booleans). The list takes 57 bytes per input byte:
  // 48 for the Value, 8 for the node of the graph, 1 for a copy of the pickle. A `.metadata` of torch 2.13 with 200,000
  // chunks (1,000 ranks, 29 MB) is charged 1.5 times its size: a fortieth of the budget.
  static constexpr std::uint64_t kBytesPerInputByte = 60;
  // Inputs of a few hundred bytes may repeat a value often: an expanded tensor, a list with one object many times.
  static constexpr std::uint64_t kBytesMin = std::uint64_t{1} << 20;

  explicit ByteBudget(std::uint64_t input_bytes)
      : left_(checked_add(checked_multiply(input_bytes, kBytesPerInputByte).value_or(kUnlimited), kBytesMin)
                  .value_or(kUnlimited)) {}

  // A budget of so many bytes, whatever the input.
  static ByteBudget of_bytes(std::uint64_t bytes) {
    ByteBudget budget(0);
    budget.left_ = bytes;
    return budget;
  }

  // Takes `bytes` from the budget. kUnsafe if fewer bytes are left; the budget then stays unchanged.
  Result<void> charge(std::uint64_t bytes) {
    if (bytes > left_) return exceeded(bytes);
    left_ -= bytes;
    return {};
  }
  // Charges `count` objects of `bytes` each.
  Result<void> charge(std::uint64_t count, std::uint64_t bytes) {
    return charge(checked_multiply(count, bytes).value_or(kUnlimited));
  }

  std::uint64_t left() const noexcept { return left_; }

 private:
  static constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();
  [[gnu::cold]] Error exceeded(std::uint64_t bytes) const {
    return Error(ErrorCode::kUnsafe,
                 "the decoded value would be far larger than the input: the input refers to the same objects too "
                 "often")
        .expected("at most " + std::to_string(left_) + " bytes more")
        .actual(bytes == kUnlimited ? std::string("more than 2^64") : std::to_string(bytes) + " bytes");
  }

  std::uint64_t left_;
};

// The heap bytes of a std::string with a text of the given length: none for a short text.
constexpr std::uint64_t heap_bytes(std::uint64_t text_bytes) {
  constexpr std::uint64_t kInlineMax = 15;
  constexpr std::uint64_t kBlockBytes = 16;  // overhead of an allocation
  return text_bytes <= kInlineMax ? 0 : text_bytes + 1 + kBlockBytes;
}

}  // namespace cairn

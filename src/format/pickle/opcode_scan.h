// OpcodeScan: the first pass over a pickle. Checks that every operand lies inside the input and that every opcode is
// known, and records which memo entries are read. The machine then runs without bounds checks and keeps only the
// recorded entries.
#pragma once

#include <cairn/result.h>

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>

namespace cairn::pickle {

// An array of zeros. The kernel allocates a page at the first write to the page: sparse use costs little.
template <typename T>
class ZeroedArray {
 public:
  ZeroedArray() = default;
  explicit ZeroedArray(std::size_t count) : memory_(static_cast<T*>(std::calloc(count == 0 ? 1 : count, sizeof(T)))) {
    if (memory_ == nullptr) throw std::bad_alloc();
  }
  T& operator[](std::size_t index) noexcept { return memory_[index]; }
  const T& operator[](std::size_t index) const noexcept { return memory_[index]; }
  T* data() noexcept { return memory_.get(); }

 private:
  struct Free {
    void operator()(T* memory) const { std::free(memory); }
  };
  std::unique_ptr<T[], Free> memory_;
};

class OpcodeScan {
 public:
  OpcodeScan() = default;  // empty
  static Result<OpcodeScan> make(std::span<const std::byte> input);

  // Bytes up to and including STOP.
  std::size_t bytes_consumed() const noexcept { return bytes_consumed_; }
  // The highest memo entry that is read, plus one.
  std::size_t memo_count() const noexcept { return memo_count_; }
  bool is_used(std::size_t memo) const noexcept {
    return memo < memo_count_ && (used_[memo / 64] >> (memo % 64) & 1) != 0;
  }
  // Whether one of the `count` entries (at most 64) from `memo` on is read.
  bool is_any_used(std::size_t memo, std::size_t count) const noexcept {
    if (memo >= memo_count_ || count == 0) return false;
    const std::size_t shift = memo % 64;
    std::uint64_t bits = used_[memo / 64] >> shift;
    if (shift != 0) bits |= used_[memo / 64 + 1] << (64 - shift);
    return bits << (64 - count) != 0;
  }

 private:
  Result<void> run(std::span<const std::byte> input);
  bool use(std::size_t memo, std::size_t input_bytes);

  ZeroedArray<std::uint64_t> used_;  // a bit for each memo entry
  std::size_t memo_count_ = 0;
  std::size_t bytes_consumed_ = 0;
};

}  // namespace cairn::pickle

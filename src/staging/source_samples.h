// SourceSamples: a few bytes of every tensor that will be copied later, to tell whether the tensor was written to
// before its copy was made.
//
// Samples are compared with the copy: a write after the copy is harmless and is not seen. There is a sample of up to 32
// bytes for each tensor and each MiB of it, at a place that differs from save to save, and one more at the end of a
// tensor above 64 KiB. So an optimizer step, which writes to all elements, is noticed; a write to a few elements may
// not be. Bytes are compared, not numbers: a NaN equals itself.
//
// take() reads the tensors; afterwards the object is immutable.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "staging/copy_item.h"

namespace cairn::staging {

class SourceSamples {
 public:
  // None.
  SourceSamples() = default;
  // Of the tensors among `items`; ready bytes belong to the save and are not sampled. `seed` decides the places.
  static SourceSamples take(std::span<const CopyItem> items, std::uint64_t seed);

  // Whether a part of the copy of items[index] holds what was sampled there. `begin`, counted in bytes of the copy, is
  // a multiple of 1 MiB; so is the size of `copied`, unless it reaches to the end.
  bool agree(std::size_t index, const CopyForm& form, std::uint64_t begin, std::span<const std::byte> copied) const;

  std::size_t count() const noexcept { return first_.empty() ? 0 : first_.back(); }

 private:
  static constexpr std::uint64_t kSampleBytes = 32;
  using Sample = std::array<std::byte, kSampleBytes>;

  // Where sample `number` of a tensor is, in bytes of the copy.
  std::uint64_t place_of(std::size_t index, std::uint64_t number, std::uint64_t bytes) const;

  std::uint64_t seed_ = 0;
  std::vector<std::uint32_t> first_;   // sample of each item; and one past the last
  std::unique_ptr<Sample[]> samples_;  // in the order of the items and of their places
};

}  // namespace cairn::staging

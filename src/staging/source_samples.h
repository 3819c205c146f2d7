// SourceSamples: a few bytes of every tensor that will be copied later, to detect writes to a tensor before its copy.
//
// The samples are compared with the copy: a write after the copy is harmless and is not detected. Each tensor has a
// sample of up to 32 bytes per MiB, at a place that differs between saves, and a tensor above 64 KiB has one more
// sample at its end. An optimizer step writes to all elements and is detected; a write to a few elements may be missed.
// The comparison is by bytes and not by numbers: a NaN equals itself.
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
  // No samples.
  SourceSamples() = default;
  // Samples the tensors of the CPU among `items`; ready bytes belong to the save and are not sampled. `seed` determines
  // the places.
  static SourceSamples take(std::span<const CopyItem> items, std::uint64_t seed);

  // Whether a part of the copy of items[index] equals the samples in its range. `begin` is the offset of the part in
  // the copy, in bytes, and a multiple of 1 MiB. The size of `copied` is a multiple of 1 MiB too, unless the part is
  // the last.
  bool agree(std::size_t index, const CopyForm& form, std::uint64_t begin, std::span<const std::byte> copied) const;

  std::size_t count() const noexcept { return first_.empty() ? 0 : first_.back(); }

 private:
  static constexpr std::uint64_t kSampleBytes = 32;
  using Sample = std::array<std::byte, kSampleBytes>;

  // The place of sample `number` of a tensor, in bytes of the copy.
  std::uint64_t place_of(std::size_t index, std::uint64_t number, std::uint64_t bytes) const;

  std::uint64_t seed_ = 0;
  std::vector<std::uint32_t> first_;   // index of each item's first sample; and the total count
  std::unique_ptr<Sample[]> samples_;  // in the order of the items and of their places
};

}  // namespace cairn::staging

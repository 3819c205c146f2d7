// DeviceSamples: a few bytes of every tensor on a device, copied at the time of the caller's call, to detect writes to
// a tensor before its copy (source_samples.h has the same for tensors of the CPU).
//
// A contiguous tensor has a sample of up to 32 bytes for each whole MiB, a MiB apart, and at least one sample; any
// other tensor has one. The places differ between saves. The samples of one device take at most 4 MiB; tensors beyond
// that have no samples.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/bounce_buffers.h"
#include "device/links.h"
#include "device/stream.h"
#include "staging/copy_item.h"

namespace cairn::staging {

class DeviceSamples {
 public:
  // For `item_count` items.
  explicit DeviceSamples(std::size_t item_count) : places_(item_count) {}

  // Queues the copies of the samples of all items on one device. The samples are there when a later event of the stream
  // is done. `seed` determines the places.
  Result<void> take(std::span<const CopyItem> items, device::Link& link, device::Stream& stream, std::uint64_t seed);

  // Whether the bytes of items[index] from `begin` on equal the samples among them. The samples must be there. `begin`
  // is a multiple of 1 MiB, and so is the end unless the item ends there.
  bool agree(std::size_t index, std::uint64_t begin, std::span<const std::byte> copied) const;

  // Leaves the memory of the samples to copies that did not end.
  void abandon() noexcept;

 private:
  // The samples of an item: `rows` of `length` bytes, a stratum apart in the item and without gaps in memory.
  struct Place {
    std::uint64_t offset = 0;  // of the first sample, in bytes of the item
    std::uint32_t length = 0;
    std::uint32_t rows = 0;
    const std::byte* taken = nullptr;
  };

  std::vector<Place> places_;  // by item
  std::vector<device::BounceBuffers::Loan> memory_;
};

}  // namespace cairn::staging

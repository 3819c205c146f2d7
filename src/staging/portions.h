// Portions: the items of a copy, divided into the steps that a thread, or a device's stream, takes at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "staging/copy_item.h"

namespace cairn::staging {

// Several whole items, or a part of one item. All items are in the memory of one processor.
struct Portion {
  std::size_t first = 0;
  std::size_t last = 0;     // one past
  std::uint64_t begin = 0;  // in bytes of the item, for a portion of one item
  std::uint64_t end = 0;

  bool is_one_item() const noexcept { return last - first == 1; }
};

// The portions in the order of the items.
std::vector<Portion> portions_of(std::span<const CopyItem> items);

// The processor whose memory holds the item.
Device device_of(const CopyItem& item);

// The offset of the portion in the arena.
std::uint64_t begin_of(std::span<const CopyItem> items, const Portion& portion);

}  // namespace cairn::staging

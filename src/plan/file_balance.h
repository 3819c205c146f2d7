// FileBalance: a sequence of items in a given number of files of nearly equal bytes.
//
// Pure. Keeps the order: a source that is read in the items' order is read sequentially for each file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cairn::plan {

// An item, of `rows` parts of equal bytes. An item of one row is never cut.
struct BalancedItem {
  std::uint64_t bytes = 0;
  std::int64_t rows = 1;
};

// The rows [begin, end) of an item.
struct ItemPart {
  std::size_t item = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;

  friend bool operator==(const ItemPart&, const ItemPart&) = default;
};

// At most `file_count` files, which is at least 1; no file is without items. Only an item of at least 2 MiB is cut.
std::vector<std::vector<ItemPart>> balance_files(std::span<const BalancedItem> items, std::size_t file_count);

}  // namespace cairn::plan

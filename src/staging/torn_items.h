// TornItems: the items whose copies differ from their samples.
//
// Thread-safe.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <mutex>
#include <set>
#include <span>

#include "staging/copy_item.h"

namespace cairn::staging {

class TornItems {
 public:
  void add(std::size_t index) {
    const std::lock_guard lock(mutex_);
    indices_.insert(index);
  }
  // kInvalidArgument if an item was added; the error names the keys. Must not run concurrently with add().
  Result<void> expect_none(std::span<const CopyItem> items) const;

 private:
  std::mutex mutex_;
  std::set<std::size_t> indices_;
};

}  // namespace cairn::staging

// Still copy: live tensors, copied into an arena so that they may change again.
//
// The tensors' memory stays the caller's and must not change until the call returns.
#pragma once

#include <cairn/result.h>
#include <cairn/state_dict.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "staging/arena.h"

namespace cairn::staging {

// What is copied, and where to: a tensor's elements in row-major order, or ready bytes.
struct CopyItem {
  const TensorView* tensor = nullptr;  // null: `bytes`
  std::string_view bytes;
  std::uint64_t arena_offset = 0;
};

struct CopyOptions {
  std::uint64_t arena_bytes = 0;           // that the save takes: all of its pages are there afterwards
  std::size_t thread_count = 0;            // 0: one for each core that this process may use, at most 8
  std::function<bool()> interrupted = {};  // asked every few milliseconds on the calling thread
};

// Copies all items, which lie in the arena in their order. Large ones are shared out among threads. kNoSpace if the
// arena's pages can't be had, kCancelled if interrupted: what has been copied by then is worth nothing.
//
// The arena tells meanwhile how far it is staged, and in the end that all is.
Result<void> copy_into(Arena& arena, std::span<const CopyItem> items, const CopyOptions& options);

}  // namespace cairn::staging

// Still copy: live tensors, copied into an arena so that they may change again.
//
// The tensors' memory stays the caller's and must not change until the call returns. A change may be noticed
// (source_samples.h).
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "staging/arena.h"
#include "staging/copy_item.h"
#include "staging/source_samples.h"

namespace cairn::staging {

struct CopyOptions {
  std::uint64_t arena_bytes = 0;           // that the save takes: all of its pages are there afterwards
  std::size_t thread_count = 0;            // 0: one for each core that this process may use, at most 8
  std::function<bool()> interrupted = {};  // asked every few milliseconds on the calling thread
  const SourceSamples* samples = nullptr;  // of the items, to be compared with their copies
  // Asked when everything is copied and before the arena says so: an error is that of the call.
  std::function<Result<void>()> confirm = {};
};

// Copies all items, which lie in the arena in their order. Large ones are shared out among threads. The arena tells
// meanwhile how far it is staged, and at the end that all is.
//
// After an error the copy is worth nothing. kNoSpace: the arena's pages can't be had. kCancelled: interrupted.
// kInvalidArgument: copies differ from their samples; the error names their keys.
Result<void> copy_into(Arena& arena, std::span<const CopyItem> items, const CopyOptions& options);

}  // namespace cairn::staging

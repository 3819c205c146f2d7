// Still copy: copies live tensors into an arena; the tensors may change after the copy.
//
// The caller owns the tensors' memory, and must not change the memory until the call returns. A change may be detected
// (source_samples.h).
#pragma once

#include <cairn/result.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "staging/arena.h"
#include "staging/copy_item.h"
#include "staging/device_sources.h"
#include "staging/source_samples.h"
#include "staging/staging_fence.h"

namespace cairn::staging {

struct CopyOptions {
  std::uint64_t arena_bytes = 0;           // of the save; copy_into allocates all pages
  std::size_t thread_count = 0;            // 0: the number of cores available to the process, at most 8
  std::function<bool()> interrupted = {};  // called every few milliseconds on the calling thread
  const SourceSamples* samples = nullptr;  // of the items of the CPU, for comparison with the copies
  DeviceSources* devices = nullptr;        // of the items; null if all items are in the memory of the CPU
  StagingFence* fence = nullptr;           // opened when the copies by devices are queued and all other copies are done
  // The longest time without progress of the copies by devices.
  std::chrono::milliseconds stall_max{std::chrono::minutes(5)};
  // Called after the last copy and before the arena is marked as staged; its error becomes the error of the call.
  std::function<Result<void>()> confirm = {};
};

// Copies all items; the items lie in the arena in their order. Large items are divided among threads. The staged mark
// grows during the copy, and is kAll at the end.
//
// After an error the copy is unusable. kNoSpace: the arena's pages can't be allocated. kCancelled: interrupted.
// kInvalidArgument: copies differ from their samples; the error names the keys. kUnavailable: an error of a device's
// driver, or no progress for `stall_max`; the error names a key and the device. With `devices`, copies into the arena
// may be pending after an error: DeviceSources::settle() waits for them.
Result<void> copy_into(Arena& arena, std::span<const CopyItem> items, const CopyOptions& options);

}  // namespace cairn::staging

// DeviceCopies: carries out the portions of a copy whose items are on devices.
//
// Where the arena is registered with the driver, the device writes directly into the arena. A single thread queues
// these portions in their order and asks which are done; at most a thousand copies are queued at a time, because a
// driver blocks the caller when a stream holds more. Elsewhere the bytes go through registered bounce buffers, and
// threads of the CPU copy them on.
//
// copy_directly() is for one thread; copy_by_bounce() may run on several threads beside it. If a function fails, copies
// may be pending: DeviceSources::settle() waits for them.
#pragma once

#include <cairn/result.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "device/stream.h"
#include "os/parallel.h"
#include "staging/arena.h"
#include "staging/copy_item.h"
#include "staging/device_sources.h"
#include "staging/portions.h"
#include "staging/torn_items.h"

namespace cairn::staging {

class DeviceCopies {
 public:
  struct Limits {
    std::chrono::milliseconds stall_max;  // the longest time without progress of any copy
  };
  // All arguments outlive the object. Items whose copies differ from their samples go to `torn`.
  DeviceCopies(Arena& arena, std::span<const CopyItem> items, DeviceSources& sources, TornItems& torn, Limits limits)
      : arena_(arena), items_(items), sources_(sources), torn_(torn), limits_(limits) {}

  // Whether the device can write the portion directly into the arena.
  bool is_direct(const Portion& portion) const;

  // Copies the portions. Calls `done` with the position of each copied portion in `portions`, and `queued` once, when
  // the last copy is queued. kCancelled: `stop` is set. kUnavailable: an error of the driver, or no progress.
  Result<void> copy_directly(std::span<const Portion> portions, const os::StopFlag& stop,
                             const std::function<void(std::size_t)>& done, const std::function<void()>& queued);
  // Copies one portion. Errors as for copy_directly().
  Result<void> copy_by_bounce(const Portion& portion, const os::StopFlag& stop);

 private:
  struct Queued {
    std::size_t portion;  // in the list of copy_directly()
    std::size_t copy_count;
    device::Event done;
  };
  Result<std::size_t> queue(const Portion& portion, std::size_t position);
  Result<bool> take_done(std::span<const Portion> portions, const std::function<void(std::size_t)>& done);
  std::span<std::byte> target_of(std::size_t item, std::uint64_t begin, std::uint64_t length) const;
  void compare(const Portion& portion);

  Arena& arena_;
  const std::span<const CopyItem> items_;
  DeviceSources& sources_;
  TornItems& torn_;
  const Limits limits_;
  std::map<std::int32_t, std::deque<Queued>> queued_;  // by ordinal, in the order of the stream
  std::size_t queued_copies_ = 0;
};

}  // namespace cairn::staging

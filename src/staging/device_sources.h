// DeviceSources: the tensors on devices among the items of a copy, as they are at the time of the caller's call.
//
// 1. mark() runs on the caller's thread before the call returns. An event on each of the caller's streams marks the
//    work that comes before the copies.
// 2. A stream of Cairn's on each device waits for the events of that device.
// 3. The samples are queued on that stream, and later the copies (device_copies.h).
//
// mark() is for one thread; afterwards several threads may queue copies.
#pragma once

#include <cairn/result.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "device/links.h"
#include "device/stream.h"
#include "staging/arena.h"
#include "staging/copy_item.h"
#include "staging/device_samples.h"

namespace cairn::staging {

class DeviceSources {
 public:
  // Null if all items are in the memory of the CPU. With `sample_seed`, takes samples. kInvalidArgument: a tensor is
  // not where its view says, or a stream is being captured. kUnavailable: an error of the driver. Errors name the key.
  static Result<std::unique_ptr<DeviceSources>> mark(std::span<const CopyItem> items,
                                                     std::shared_ptr<device::Links> links,
                                                     std::optional<std::uint64_t> sample_seed);
  DeviceSources(const DeviceSources&) = delete;
  DeviceSources& operator=(const DeviceSources&) = delete;
  // Waits a second for pending copies. Copies that are pending after that keep the streams and the memory of samples,
  // and hold back the caller's streams: on a thread of the caller, unless no copy is pending.
  ~DeviceSources();

  struct Lane {
    device::Link* link;
    device::Stream stream;
  };
  // Of a device that holds an item.
  Lane& lane_of(std::int32_t ordinal);
  const DeviceSamples& samples() const noexcept { return samples_; }

  // New marks behind the copies queued so far, one for each device. A device whose driver reports an error has none:
  // its copies are lost.
  using Marks = std::vector<std::shared_ptr<const device::Event>>;
  Marks marks() noexcept;
  // Waits until all queued copies are done. False if copies are still pending at the end of `timeout`: the devices may
  // then write into their targets at any later time.
  bool settle(std::chrono::milliseconds timeout) noexcept;

  // Makes later work of the caller's streams start after the pending copies. On a thread of the caller.
  void hold_back_caller() noexcept;
  // Keeps `memory`, which pending copies may write into, and `sources` until the copies are done.
  static void park(std::shared_ptr<DeviceSources> sources, std::shared_ptr<void> memory);

  // Registers the arena's present memory on a thread of its own, for later saves.
  void register_beside(Arena& arena);

 private:
  DeviceSources(std::size_t item_count, std::shared_ptr<device::Links> links)
      : links_(std::move(links)), samples_(item_count) {}
  Result<void> add_streams(std::span<const CopyItem> items);

  std::shared_ptr<device::Links> links_;  // shared with the stager; null if parked there
  std::vector<Device> marked_;            // the caller's streams
  std::vector<Lane> lanes_;
  DeviceSamples samples_;
};

}  // namespace cairn::staging

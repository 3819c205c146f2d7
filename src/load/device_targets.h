// DeviceTargets: fills the targets of a load that are in the memory of devices, through a few small registered buffers.
//
// 1. mark(), before any target changes: an event is recorded on the stream of each device (Device::stream), and a
//    stream of the load's own waits for that event.
// 2. place(), on the threads that read: checked elements are packed into a registered buffer, and a copy to the device
//    is queued. A buffer is used again after its copy. At most kInFlightMax copies of a device are pending.
// 3. finish(): waits for the copies. Work that is queued on any stream afterwards sees the elements.
//
// A wait for a single copy ends after kStall. Copies that outlive a load that has failed hold back the streams of step
// 1: a later load, and whoever uses the memory next in the order of these streams, comes after the copies.
#pragma once

#include <cairn/result.h>
#include <cairn/state_dict.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data_file/element_sink.h"
#include "device/links.h"
#include "device/stream.h"
#include "os/parallel.h"

namespace cairn::checkpointer {

class DeviceTargets : public data_file::ElementSink {
 public:
  static constexpr std::size_t kInFlightMax = 8;
  static constexpr std::chrono::minutes kStall{5};

  DeviceTargets() = default;
  // Waits a second for pending copies; buffers of copies that do not end stay mapped until the program ends. By a
  // thread of the caller: the streams of mark() exist.
  ~DeviceTargets() override;

  // kInvalidArgument for a stream under capture and for a tensor on another device; kUnavailable: the driver's error.
  // Both name the key.
  Result<void> mark(std::span<const Entry> entries);
  Result<void> place(const data_file::TensorRead& read, std::int64_t begin, std::span<const std::byte> elements,
                     const os::StopFlag& stop) override;
  // Waits for the copies that were queued so far, while other threads queue more. Errors as of finish().
  Result<void> settle(const std::function<bool()>& interrupted);
  // kCancelled when `interrupted`, if given, returns true.
  Result<void> finish(const std::function<bool()>& interrupted);
  // A text for the user if the driver refused to register a buffer; once in a process.
  std::optional<std::string> untold_refusal();

 private:
  struct Pending {
    device::BounceBuffers::Loan buffer;
    device::Event done;
    std::string key;
  };
  struct Lane {
    Lane(device::Link& its_link, device::Stream its_stream) : link(its_link), stream(std::move(its_stream)) {}
    device::Link& link;
    std::mutex mutex;  // protects the members below, and the order of the stream
    device::Stream stream;
    std::deque<Pending> pending;               // in the order of the stream
    std::atomic<bool> has_lost_copies{false};  // whether a copy may be pending that `pending` lacks
  };
  class Filling;

  Lane* lane_of(std::int32_t ordinal) noexcept;
  Result<void> add(const TensorEntry& entry);
  // Waits for the copy. The error names the copy's key; after an error the buffer is abandoned.
  static Result<void> await(Lane& lane, Pending& pending, const std::function<bool()>& interrupted);
  static Result<void> await(const Lane& lane, device::Event& done, const std::function<bool()>& interrupted);
  static Error stalled(const Lane& lane);
  Result<device::BounceBuffers::Loan> buffer_of(Lane& lane, const os::StopFlag& stop);

  device::Links links_;
  std::vector<Device> marked_;
  std::vector<std::unique_ptr<Lane>> lanes_;
};

}  // namespace cairn::checkpointer

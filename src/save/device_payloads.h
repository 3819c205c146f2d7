// DevicePayloads: reads the payloads of a synchronous save that are in the memory of devices, while the files are
// written. No tensor is held whole in host memory.
//
// 1. mark(), on the caller's thread: an event on the stream of each device (Device::stream) marks the work that comes
//    before the save. Streams of Cairn's own wait for the events (staging/device_sources.h).
// 2. read(), on the threads that write: the bytes of a segment come through a registered buffer.
//
// mark() is for one thread; afterwards the object is thread-safe.
#pragma once

#include <cairn/result.h>
#include <cairn/tensor.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data_file/file_image.h"
#include "data_file/image_writer.h"
#include "device/links.h"
#include "staging/device_sources.h"

namespace cairn::checkpointer {

class DevicePayloads {
 public:
  // A payload of a file. The tensor and its key outlive the reads.
  struct Payload {
    const TensorView* tensor = nullptr;  // null for bytes
    std::string_view key;
  };

  // Null if no item is on a device. `stall_max` limits the wait for the copies of a buffer. kInvalidArgument: a tensor
  // is not where its view says, or a stream is being captured. kUnavailable: an error of the driver. Errors name the
  // key.
  static Result<std::shared_ptr<DevicePayloads>> mark(std::span<const data_file::ItemSource> items,
                                                      std::chrono::milliseconds stall_max);

  // Fills in the parts of a file with these payloads (ImageFile::fill). kCancelled when `interrupted` returns true;
  // kUnavailable: an error of the driver, or a stall. Errors name the key.
  Result<void> read(std::span<const Payload> payloads, std::span<const data_file::PayloadPart> parts,
                    const std::function<bool()>& interrupted);
  // A text for the user if the driver refused to register a buffer; once in a process.
  std::optional<std::string> untold_refusal();

 private:
  explicit DevicePayloads(std::chrono::milliseconds stall_max) : stall_max_(stall_max) {}

  const std::shared_ptr<device::Links> links_ = std::make_shared<device::Links>();
  const std::chrono::milliseconds stall_max_;
  std::unique_ptr<staging::DeviceSources> sources_;  // after links_: destroyed first
  std::vector<device::Link*> used_;                  // one for each device
};

}  // namespace cairn::checkpointer

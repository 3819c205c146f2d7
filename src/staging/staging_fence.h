// StagingFence: makes a stream of the trainer wait for the copies of a save, while the trainer's thread goes on.
//
// Thread-safe.
#pragma once

#include <cairn/result.h>
#include <cairn/tensor.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "device/stream.h"

namespace cairn::staging {

class StagingFence {
 public:
  // By the copying side: all copies by the CPU are done, and the copies by devices are done or queued before `marks`.
  void open(std::vector<std::shared_ptr<const device::Event>> marks);

  // Waits until open(). False after `timeout`.
  bool wait_open(std::chrono::milliseconds timeout);
  // After open(): work queued on the trainer's stream from now on starts after all copies from the stream's device.
  // Copies of a save that has failed meanwhile count as done.
  Result<void> make_wait(const Device& trainer) const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable opened_;
  bool is_open_ = false;
  std::vector<std::shared_ptr<const device::Event>> marks_;
};

}  // namespace cairn::staging

// SessionPriority: the priority of a writer process: the requested priority, raised to the trainer's while a trainer
// waits for the bytes of a save to be copied.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <mutex>
#include <set>

#include "os/priority.h"

namespace cairn::writer {

class SessionPriority {
 public:
  // Call before the first save.
  void set(const os::Priority& priority) { priority_ = priority; }

  // The trainer waits for this save.
  void raise(std::uint64_t save) {
    const std::lock_guard lock(mutex_);
    raised_.insert(save);
    apply();
  }
  // The trainer no longer waits for this save. A repeated call retries a change that the kernel refused.
  void lower(std::uint64_t save) {
    const std::lock_guard lock(mutex_);
    raised_.erase(save);
    apply();
  }
  // Like lower(), and also lowers the priority of the calling thread, which works for the save.
  void lower_with_thread(std::uint64_t save) {
    os::set_priority(priority_);
    lower(save);
  }

 private:
  void apply() { niceness_.set(raised_.empty() ? priority_.nice : 0); }

  os::Priority priority_;
  std::mutex mutex_;
  std::set<std::uint64_t> raised_;  // by number
  os::SessionNiceness niceness_;
};

}  // namespace cairn::writer

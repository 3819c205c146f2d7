// SessionPriority: how far a writer process stands back behind the training: as it was told, but not while a trainer
// waits for the bytes of one of its saves to be copied.
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
  // Before the first save.
  void set(const os::Priority& priority) { priority_ = priority; }

  // The trainer waits for this save.
  void raise(std::uint64_t save) {
    const std::lock_guard lock(mutex_);
    raised_.insert(save);
    apply();
  }
  // It does not any more. Called again, it tries again what the kernel did not take.
  void lower(std::uint64_t save) {
    const std::lock_guard lock(mutex_);
    raised_.erase(save);
    apply();
  }
  // The same, and the calling thread, which works for the save, stands back too.
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

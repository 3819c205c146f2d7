// Gate: admits threads to a region until the gate is closed; close() waits for the threads in the region.
//
// Thread-safe.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>

namespace cairn::os {

class Gate {
 public:
  // A thread is in the region while it has a granted Pass.
  class Pass {
   public:
    // A null gate grants every pass. The gate outlives the pass.
    explicit Pass(Gate* gate) : gate_(gate), granted_(gate == nullptr || gate->enter()) {}
    ~Pass() {
      if (gate_ != nullptr && granted_) gate_->leave();
    }
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

    bool is_granted() const { return granted_; }

   private:
    Gate* gate_;
    bool granted_;
  };

  // Refuses all later passes, and returns when no thread is in the region. Must not be called from the region.
  void close() {
    std::unique_lock lock(mutex_);
    closed_ = true;
    left_.wait(lock, [this] { return inside_ == 0; });
  }

 private:
  bool enter() {
    const std::lock_guard lock(mutex_);
    if (!closed_) ++inside_;
    return !closed_;
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    if (--inside_ == 0) left_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable left_;
  std::size_t inside_ = 0;
  bool closed_ = false;
};

}  // namespace cairn::os

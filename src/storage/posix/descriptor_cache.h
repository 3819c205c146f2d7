// DescriptorCache: keeps any number of files readable with a bounded number of open descriptors. The cache closes the
// least recently used descriptor, and reopens a file on its next use.
//
// Thread-safe. A thread may hold at most one pin at a time. If all descriptors are pinned, pin() waits until a thread
// releases a pin.
#pragma once

#include <cairn/result.h>

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <utility>

#include "os/fd.h"

namespace cairn::storage {

class DescriptorCache {
 public:
  class Slot;

  // Keeps the descriptor of a slot open until destruction.
  class Pin {
   public:
    explicit Pin(Slot& slot) : slot_(&slot) {}  // takes over one count of slot.pins_
    Pin(Pin&& other) noexcept : slot_(std::exchange(other.slot_, nullptr)) {}
    Pin& operator=(Pin&&) = delete;
    ~Pin();
    int fd() const noexcept;

   private:
    Slot* slot_;
  };

  // The place of one descriptor, open or closed. Outlives its pins.
  class Slot {
   public:
    // Opens the descriptor. Called once per opening, never twice at the same time for one slot.
    using Open = std::function<Result<os::Fd>()>;
    Slot(std::shared_ptr<DescriptorCache> cache, Open open);
    ~Slot();
    Slot(const Slot&) = delete;
    Slot& operator=(const Slot&) = delete;

    // Returns the error of `open` if opening fails.
    Result<Pin> pin() { return cache_->pin(*this); }

   private:
    friend class DescriptorCache;
    std::shared_ptr<DescriptorCache> cache_;  // owned by all slots of the cache and by the storage
    Open open_;
    // The members below belong to the cache and are guarded by its mutex.
    os::Fd fd_;
    std::size_t pins_ = 0;
    bool opening_ = false;
    std::list<Slot*>
        node_;  // holds `this`, or is empty while the node is in the cache's idle list: a move allocates nothing
    std::list<Slot*>::iterator place_;
  };

  // A quarter of the process's limit of open descriptors (RLIMIT_NOFILE), and at least 8.
  static std::size_t share_of_process();

  explicit DescriptorCache(std::size_t open_max) : open_max_(open_max) {}

 private:
  class Opening;
  Result<Pin> pin(Slot& slot);
  Result<Pin> open(Slot& slot, std::unique_lock<std::mutex>& lock);
  void unpin(Slot& slot);
  os::Fd take_idle();

  const std::size_t open_max_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t open_count_ = 0;  // open descriptors, and descriptors being opened
  std::list<Slot*> idle_;       // open and not pinned, least recently used first
};

}  // namespace cairn::storage

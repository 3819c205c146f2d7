// DescriptorCache: keeps any number of files readable with a bounded number of open descriptors: the least recently
// used one is closed, and opened again when it is needed next.
//
// Thread-safe. A thread holds at most one pin at a time: if all descriptors are pinned, whoever needs another one waits
// until one is given back.
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

  // Keeps the descriptor of a slot open until destroyed.
  class Pin {
   public:
    explicit Pin(Slot& slot) : slot_(&slot) {}  // takes over one count of the slot's pins
    Pin(Pin&& other) noexcept : slot_(std::exchange(other.slot_, nullptr)) {}
    Pin& operator=(Pin&&) = delete;
    ~Pin();
    int fd() const noexcept;

   private:
    Slot* slot_;
  };

  // The place of one descriptor, open or not. Outlives its pins.
  class Slot {
   public:
    // Opens the descriptor, as often as that is needed; never twice at the same time.
    using Open = std::function<Result<os::Fd>()>;
    Slot(std::shared_ptr<DescriptorCache> cache, Open open);
    ~Slot();
    Slot(const Slot&) = delete;
    Slot& operator=(const Slot&) = delete;

    // Fails as `open` does.
    Result<Pin> pin() { return cache_->pin(*this); }

   private:
    friend class DescriptorCache;
    std::shared_ptr<DescriptorCache> cache_;  // owned by all its slots and by the storage
    Open open_;
    // What follows is the cache's, under its lock.
    os::Fd fd_;
    std::size_t pins_ = 0;
    bool opening_ = false;
    std::list<Slot*> node_;  // this slot, but while it is in the cache's idle list: nothing is allocated to move there
    std::list<Slot*>::iterator place_;
  };

  // A quarter of the descriptors that the process may have open now (RLIMIT_NOFILE), and at least a handful.
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
  std::size_t open_count_ = 0;  // open, or being opened
  std::list<Slot*> idle_;       // open and not pinned, least recently used first
};

}  // namespace cairn::storage

#include "storage/posix/descriptor_cache.h"

#include <sys/resource.h>

#include <algorithm>
#include <cassert>
#include <cerrno>

namespace cairn::storage {
namespace {

// The remaining descriptors are for the caller, for other storages and for the files that they open.
constexpr rlim_t kShareOfProcess = 4;
constexpr rlim_t kOpenMin = 8;
constexpr rlim_t kOpenMax = 65536;  // for a process without a limit

}  // namespace

// A slot being opened without the lock. The destructor takes the lock, also after an exception.
class DescriptorCache::Opening {
 public:
  Opening(DescriptorCache& cache, Slot& slot, std::unique_lock<std::mutex>& lock)
      : cache_(cache), slot_(slot), lock_(lock) {
    slot_.opening_ = true;
    ++cache_.open_count_;
  }
  Opening(const Opening&) = delete;
  Opening& operator=(const Opening&) = delete;
  ~Opening() {
    if (!lock_.owns_lock()) lock_.lock();
    slot_.opening_ = false;
    if (!slot_.fd_) --cache_.open_count_;
    cache_.changed_.notify_all();
  }

 private:
  DescriptorCache& cache_;
  Slot& slot_;
  std::unique_lock<std::mutex>& lock_;
};

DescriptorCache::Pin::~Pin() {
  if (slot_ != nullptr) slot_->cache_->unpin(*slot_);
}

// Needs no lock: a pinned descriptor does not change.
int DescriptorCache::Pin::fd() const noexcept { return slot_->fd_.get(); }

DescriptorCache::Slot::Slot(std::shared_ptr<DescriptorCache> cache, Open open)
    : cache_(std::move(cache)), open_(std::move(open)), node_{this}, place_(node_.begin()) {}

DescriptorCache::Slot::~Slot() {
  const std::lock_guard lock(cache_->mutex_);
  assert(pins_ == 0 && !opening_);
  if (!fd_) return;
  node_.splice(node_.end(), cache_->idle_, place_);
  --cache_->open_count_;
  fd_ = os::Fd();
  cache_->changed_.notify_all();
}

std::size_t DescriptorCache::share_of_process() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kOpenMin;
  return std::clamp(limit.rlim_cur / kShareOfProcess, kOpenMin, kOpenMax);
}

Result<DescriptorCache::Pin> DescriptorCache::pin(Slot& slot) {
  std::unique_lock lock(mutex_);
  // Wait until the slot is open, or until the calling thread may open the slot.
  changed_.wait(lock, [&] { return slot.fd_ || (!slot.opening_ && (open_count_ < open_max_ || !idle_.empty())); });
  if (!slot.fd_) return open(slot, lock);
  if (slot.pins_++ == 0) slot.node_.splice(slot.node_.end(), idle_, slot.place_);
  return Pin(slot);
}

Result<DescriptorCache::Pin> DescriptorCache::open(Slot& slot, std::unique_lock<std::mutex>& lock) {
  os::Fd closing;
  if (open_count_ >= open_max_) closing = take_idle();
  const Opening opening(*this, slot, lock);
  for (;;) {
    // Closing and opening happen without the lock: on a network file system each may take long.
    lock.unlock();
    closing = os::Fd();
    Result<os::Fd> fd = slot.open_();
    lock.lock();
    if (fd) {
      slot.fd_ = std::move(*fd);
      slot.pins_ = 1;
      return Pin(slot);
    }
    // The rest of the process has used up the descriptors: close one of ours and try again.
    const bool exhausted = fd.error().error_number() == EMFILE || fd.error().error_number() == ENFILE;
    if (!exhausted || idle_.empty()) return std::move(fd).error();
    closing = take_idle();
  }
}

void DescriptorCache::unpin(Slot& slot) {
  const std::lock_guard lock(mutex_);
  if (--slot.pins_ != 0) return;
  idle_.splice(idle_.end(), slot.node_);
  changed_.notify_all();
}

os::Fd DescriptorCache::take_idle() {
  Slot& slot = *idle_.front();
  slot.node_.splice(slot.node_.end(), idle_, slot.place_);
  --open_count_;
  return std::move(slot.fd_);
}

}  // namespace cairn::storage

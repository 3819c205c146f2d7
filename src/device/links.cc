#include "device/links.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "device/kept_for_ever.h"
#include "os/start_thread.h"

namespace cairn::device {
namespace {

// The pause after each piece beside a trainer, as a multiple of the time of the piece.
constexpr int kPauseShare = 4;

}  // namespace

Result<Stream> Link::borrow_stream() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      Stream stream = std::move(idle_.back());
      idle_.pop_back();
      return stream;
    }
  }
  return Stream::make(driver_, ordinal_);
}

void Link::return_stream(Stream stream) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(stream));
}

Links::~Links() {
  // The thread exists only in the process that started the thread.
  if (process_id_ != getpid()) {
    if (registering_.joinable()) registering_.detach();
  } else {
    release_parked();
  }
  // A device may write into the remaining memory at any time: the memory is never freed.
  if (!parked_->all.empty()) keep_for_ever(std::move(parked_));
}

Result<Link*> Links::to(DeviceKind kind, std::int32_t ordinal) {
  CAIRN_TRY_ASSIGN(Driver* const driver, driver_of(kind));
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Link>& link = cuda_[ordinal];
  if (link == nullptr) link = std::make_unique<Link>(*driver, ordinal);
  return link.get();
}

void Links::register_beside(std::shared_ptr<Registration> registration) {
  const std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(registration));
  if (is_registering_) return;
  registering_ = {};  // has ended, or is about to end
  auto started = os::start_thread<std::jthread>("to register memory",
                                                [this](const std::stop_token& stop) { run_registrations(stop); });
  if (!started) return;
  registering_ = std::move(*started);
  is_registering_ = true;
}

void Links::run_registrations(const std::stop_token& stop) {
  for (;;) {
    std::shared_ptr<Registration> next;
    {
      const std::lock_guard lock(mutex_);
      if (waiting_.empty() || stop.stop_requested()) {
        is_registering_ = false;
        return;
      }
      next = std::move(waiting_.back());
      waiting_.pop_back();
    }
    Result<void> registered = next->register_all([&] { return stop.stop_requested(); }, kPauseShare);
    if (!registered) note_refusal(registered.error());
  }
}

void Links::note_refusal(const Error& refusal) {
  const std::lock_guard lock(mutex_);
  if (!refusal_) {
    refusal_ = "the driver registers no more memory, so copies from the device to the staging memory take a detour: " +
               refusal.message();
  }
}

std::optional<std::string> Link::untold_buffer_refusal(std::string_view slower, std::atomic<bool>& is_told) const {
  const std::optional<Error> refusal = buffers_.refusal();
  if (!refusal || is_told.exchange(true)) return std::nullopt;
  return "the driver refused to register memory, and " + std::string(slower) + " " + device_name(driver_, ordinal_) +
         " are slower: " + std::string(refusal->what()) + "; raise the limit of locked memory (ulimit -l)";
}

std::optional<std::string> Links::untold_refusal() {
  const std::lock_guard lock(mutex_);
  if (refusal_is_told_ || !refusal_) return std::nullopt;
  refusal_is_told_ = true;
  return refusal_;
}

void Links::park(std::shared_ptr<void> memory, std::function<bool()> is_free) {
  const std::lock_guard lock(mutex_);
  parked_->all.push_back({std::move(memory), std::move(is_free)});
}

void Links::release_parked() {
  std::vector<Parked> released;  // freed without the lock: the memory's owner may call this object
  const std::lock_guard lock(mutex_);
  const auto first_free = std::stable_partition(parked_->all.begin(), parked_->all.end(),
                                                [](const Parked& parked) { return !parked.is_free(); });
  std::move(first_free, parked_->all.end(), std::back_inserter(released));
  parked_->all.erase(first_free, parked_->all.end());
}

}  // namespace cairn::device

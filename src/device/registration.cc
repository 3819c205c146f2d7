#include "device/registration.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "core/checked.h"

namespace cairn::device {

// The pieces are whole, except at the end of the memory: a copy must not begin in one registration and end in the next.
void Registration::extend(std::uint64_t present) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t known = std::min<std::uint64_t>(present, memory_.size());
  end_ = std::max(end_, std::min<std::uint64_t>(align_up(known, kPieceBytes), memory_.size()));
}

Result<bool> Registration::register_next() {
  const std::lock_guard lock(mutex_);
  const std::uint64_t begin = registered_;
  if (refusal_) return *refusal_;
  if (is_withdrawn_ || begin >= end_) return false;
  const std::uint64_t bytes = std::min<std::uint64_t>(kPieceBytes, end_ - begin);
  Result<void> registered = driver_.register_host(ordinal_, memory_.subspan(begin, bytes));
  if (!registered) {
    refusal_ = registered.error();
    return std::move(registered).error();
  }
  registered_.store(begin + bytes, std::memory_order_release);
  return begin + bytes < end_;
}

Result<void> Registration::register_all(const std::function<bool()>& stopped, int pause_share) {
  while (!stopped || !stopped()) {
    const auto begin = std::chrono::steady_clock::now();
    CAIRN_TRY_ASSIGN(const bool has_more, register_next());
    if (!has_more) break;
    std::this_thread::sleep_for((std::chrono::steady_clock::now() - begin) * pause_share);
  }
  return {};
}

std::optional<Error> Registration::refusal() const {
  const std::lock_guard lock(mutex_);
  return refusal_;
}

void Registration::withdraw() noexcept {
  if (getpid() != process_id_) return;  // a thread of the parent may hold the lock for ever
  const std::lock_guard lock(mutex_);
  is_withdrawn_ = true;
  for (std::uint64_t begin = 0; begin < registered_; begin += kPieceBytes) {
    driver_.unregister_host(ordinal_, memory_.data() + begin);
  }
  registered_ = 0;
}

}  // namespace cairn::device

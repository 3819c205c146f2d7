#include "device/registration.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace cairn::device {
Result<bool> Registration::register_next() {
  const std::lock_guard lock(mutex_);
  const std::uint64_t begin = registered_;
  if (refusal_) return *refusal_;
  if (is_withdrawn_ || begin >= memory_.size()) return false;
  const std::uint64_t bytes = std::min<std::uint64_t>(kPieceBytes, memory_.size() - begin);
  Result<void> registered = driver_.register_host(ordinal_, memory_.subspan(begin, bytes));
  if (!registered) {
    refusal_ = registered.error();
    return std::move(registered).error();
  }
  registered_.store(begin + bytes, std::memory_order_release);
  return begin + bytes < memory_.size();
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

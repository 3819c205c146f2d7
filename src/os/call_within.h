// A call that may hang in the kernel, made on a thread of its own, for which the caller waits a limited time.
#pragma once

#include <cairn/result.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "os/start_thread.h"

namespace cairn::os {

constexpr std::chrono::hours kCallLimitMax{24 * 365};  // a longer wait would overflow the clock

// What `work` returns; nullopt if it has not returned within `limit`, or if no thread can be had. It then goes on
// alone, so it owns all that it uses, and throws nothing.
template <typename Work>
auto call_within(std::chrono::milliseconds limit, Work work) -> std::optional<decltype(work())> {
  struct Answer {
    std::mutex mutex;
    std::condition_variable here;
    std::optional<decltype(work())> value;
  };
  const auto answer = std::make_shared<Answer>();  // owned by the thread too
  auto body = [answer, work = std::move(work)]() mutable {
    auto value = work();
    const std::lock_guard lock(answer->mutex);
    answer->value.emplace(std::move(value));
    answer->here.notify_all();
  };
  Result<std::thread> thread = start_thread<std::thread>("for a call that may hang", std::move(body));
  if (!thread) return std::nullopt;
  thread->detach();
  std::unique_lock lock(answer->mutex);
  answer->here.wait_for(lock, std::min<std::chrono::milliseconds>(limit, kCallLimitMax),
                        [&] { return answer->value.has_value(); });
  return std::move(answer->value);
}

}  // namespace cairn::os

// A call that may hang in the kernel, made on a separate thread. The caller waits for a limited time. Longer work, and
// work whose caller asks for an interruption: storage/watched_thread.h.
#pragma once

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

// Returns the value of `work`; nullopt if `work` has not returned within `limit`, or if no thread can be started. After
// the limit `work` runs on. Without time, at a limit of 0, `work` is not called. `work` must own everything that it
// uses, and must not throw.
template <typename Work>
auto call_within(std::chrono::milliseconds limit, Work work) -> std::optional<decltype(work())> {
  if (limit <= std::chrono::milliseconds(0)) return std::nullopt;
  struct Answer {
    std::mutex mutex;
    std::condition_variable here;
    std::optional<decltype(work())> value;
  };
  const auto answer = std::make_shared<Answer>();  // owned by the caller and by the thread of the call
  auto body = [answer, work = std::move(work)]() mutable {
    auto value = work();
    const std::lock_guard lock(answer->mutex);
    answer->value.emplace(std::move(value));
    answer->here.notify_all();
  };
  auto thread = start_thread<std::thread>("for a call that may hang", std::move(body));
  if (!thread) return std::nullopt;
  thread->detach();
  std::unique_lock lock(answer->mutex);
  answer->here.wait_for(lock, std::min<std::chrono::milliseconds>(limit, kCallLimitMax),
                        [&] { return answer->value.has_value(); });
  return std::move(answer->value);
}

}  // namespace cairn::os

// Calls that may hang in the kernel, made on a separate thread. The caller waits for a limited time, or until its
// condition for waiting ends.
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

// The place for the value of a call. Owned by the caller and by the thread of the call.
template <typename Value>
struct CallAnswer {
  std::mutex mutex;
  std::condition_variable here;
  std::optional<Value> value;
};

// Calls `work` on a detached thread. `work` must own everything that it uses, and must not throw.
template <typename Work>
auto start_call(Work work) -> Result<std::shared_ptr<CallAnswer<decltype(work())>>> {
  const auto answer = std::make_shared<CallAnswer<decltype(work())>>();
  auto body = [answer, work = std::move(work)]() mutable {
    auto value = work();
    const std::lock_guard lock(answer->mutex);
    answer->value.emplace(std::move(value));
    answer->here.notify_all();
  };
  CAIRN_TRY_ASSIGN(std::thread thread, start_thread<std::thread>("for a call that may hang", std::move(body)));
  thread.detach();
  return answer;
}

// Returns the value of `work`; nullopt if `work` has not returned within `limit`, or if no thread can be started. After
// the limit `work` runs on. Without time, at a limit of 0, `work` is not called. `work` must own everything that it
// uses, and must not throw.
template <typename Work>
auto call_within(std::chrono::milliseconds limit, Work work) -> std::optional<decltype(work())> {
  if (limit <= std::chrono::milliseconds(0)) return std::nullopt;
  const auto answer = start_call(std::move(work));
  if (!answer) return std::nullopt;
  std::unique_lock lock((*answer)->mutex);
  (*answer)->here.wait_for(lock, std::min<std::chrono::milliseconds>(limit, kCallLimitMax),
                           [&] { return (*answer)->value.has_value(); });
  return std::move((*answer)->value);
}

// Returns the value of `work`. Calls `keep_waiting` on the calling thread, first before the wait and then every 20 ms.
// When `keep_waiting` returns false, call_while returns nullopt and `work` runs on; if `keep_waiting` throws, `work`
// runs on too. kUnavailable if no thread can be started. `work` as for call_within.
template <typename Work, typename KeepWaiting>
auto call_while(const KeepWaiting& keep_waiting, Work work) -> Result<std::optional<decltype(work())>> {
  constexpr std::chrono::milliseconds kInterval{20};
  CAIRN_TRY_ASSIGN(const auto answer, start_call(std::move(work)));
  while (keep_waiting()) {
    std::unique_lock lock(answer->mutex);
    if (answer->here.wait_for(lock, kInterval, [&] { return answer->value.has_value(); })) break;
  }
  const std::lock_guard lock(answer->mutex);
  return std::move(answer->value);
}

}  // namespace cairn::os

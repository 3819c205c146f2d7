// Watched call: long work on a WatchedThread of its own, while the calling thread shows the progress, asks for an
// interruption and judges the calls into the storage. The steps stand at the top of watched_thread.h.
//
// The calling thread asks for an interruption before the start, too. After an interruption the calling thread waits for
// kGrace; if a call into the storage exceeds its deadline, the calling thread does not wait. When the watched call
// returns, the thread is abandoned in any case: the working threads end when the storage answers.
#pragma once

#include <cairn/options.h>
#include <cairn/result.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "storage/watched_thread.h"

namespace cairn::storage {

// What the calling thread does meanwhile. Both functions may be empty.
struct Meanwhile {
  std::function<bool()> interrupted;
  std::function<void(std::uint64_t bytes_done, std::uint64_t bytes_total)> progress;
  Error cancelled;  // the error after an interruption
  SaveDeadlines deadlines;
};

// Returns the result of `work(watch)`, a Result; kUnavailable if a call into the storage exceeds its deadline. `work`
// must own everything that it uses. An exception of `work` becomes kInternal; an exception of `interrupted` or
// `progress` goes to the caller, and stops the work too.
template <typename Work>
auto watched_call(const Meanwhile& meanwhile, Work work) -> decltype(work(std::declval<Watch&>())) {
  constexpr std::chrono::milliseconds kGrace{500};
  if (meanwhile.interrupted && meanwhile.interrupted()) return meanwhile.cancelled;
  WatchedThread thread("for a call that may hang");
  const auto judge = [&]() -> std::optional<Error> {
    if (auto stall = thread.overdue(meanwhile.deadlines)) return stall;
    const Watch& watch = *thread.watch();
    if (meanwhile.progress) meanwhile.progress(watch.bytes_done, watch.bytes_total);
    if (!thread.interrupted_for() && meanwhile.interrupted && meanwhile.interrupted()) thread.interrupt();
    const auto waited = thread.interrupted_for();
    return waited && *waited >= kGrace ? std::optional(meanwhile.cancelled) : std::nullopt;
  };
  const auto carry_out = [&](WatchedThread::Task task) -> std::optional<Error> {
    if (auto posted = thread.post(std::move(task)); !posted) return std::move(posted).error();
    auto reason = judge();  // at once: also short work shows its progress
    return reason ? reason : thread.wait(judge);
  };
  auto body = [watch = thread.watch(), work = std::move(work)]() mutable -> std::invoke_result_t<Work&, Watch&> {
    try {
      return work(*watch);
    } catch (const std::exception& exception) {
      return Error(ErrorCode::kInternal, std::string("the work failed: ") + exception.what());
    }
  };
  return outcome_of(std::move(body), carry_out);
}

}  // namespace cairn::storage

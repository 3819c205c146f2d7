// Watched call: long work on a thread of its own, while the calling thread shows the progress, asks for an interruption
// and judges the calls into the storage.
//
// 1. The calling thread asks for an interruption. A new thread does the work: a call into the storage may hang, and the
//    metadata of a large checkpoint takes seconds to read.
// 2. The calling thread waits; every few milliseconds it calls `progress` and `interrupted`, and ages the pending calls
//    into the storage.
// 3. After an interruption the calling thread sets the stop flag, which the working threads check between two pieces of
//    work, and waits for kGrace. If a call into the storage exceeds its deadline, the calling thread sets the flag and
//    does not wait.
// 4. Then the call returns; the working threads end when the storage answers.
#pragma once

#include <cairn/options.h>
#include <cairn/result.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "os/call_within.h"
#include "os/parallel.h"
#include "storage/operation_watch.h"

namespace cairn::storage {

// The state that the calling thread and the working threads share. Thread-safe.
struct Watch {
  os::StopFlag stop;  // the caller was interrupted
  std::atomic<std::uint64_t> bytes_done{0};
  std::atomic<std::uint64_t> bytes_total{0};
  // The calls into the storages that `work` opens by watched_directories(). Storages and files share the ownership.
  std::shared_ptr<OperationWatch> operations = std::make_shared<OperationWatch>();
};

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
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kGrace{500};
  if (meanwhile.interrupted && meanwhile.interrupted()) return meanwhile.cancelled;
  const auto watch = std::make_shared<Watch>();
  struct StopAtExit {
    Watch& watch;
    ~StopAtExit() { watch.stop.set(); }
  };
  const StopAtExit stop_at_exit{*watch};
  auto body = [watch, work = std::move(work)]() mutable -> decltype(work(*watch)) {
    try {
      return work(*watch);
    } catch (const std::exception& exception) {
      return Error(ErrorCode::kInternal, std::string("the work failed: ") + exception.what());
    }
  };
  std::optional<Clock::time_point> interrupted_at;
  std::optional<Error> hanging;
  const auto keep_waiting = [&] {
    watch->operations->tick(Clock::now());
    if (const auto overdue = watch->operations->overdue(meanwhile.deadlines)) {
      hanging = stall(*overdue, meanwhile.deadlines);
      return false;
    }
    if (meanwhile.progress) meanwhile.progress(watch->bytes_done, watch->bytes_total);
    if (!interrupted_at && meanwhile.interrupted && meanwhile.interrupted()) {
      interrupted_at = Clock::now();
      watch->stop.set();
    }
    return !interrupted_at || Clock::now() - *interrupted_at < kGrace;
  };
  CAIRN_TRY_ASSIGN(auto done, os::call_while(keep_waiting, std::move(body)));
  if (!done) return hanging ? *std::move(hanging) : meanwhile.cancelled;
  return std::move(*done);
}

}  // namespace cairn::storage

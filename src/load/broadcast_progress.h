// BroadcastProgress: how far the three threads of a window broadcast are, and whether their rank has failed.
//
// Thread-safe. A count of windows says that all windows with lower numbers are done.
#pragma once

#include <cairn/result.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

#include "core/attempt.h"
#include "os/parallel.h"

namespace cairn::checkpointer {

class BroadcastProgress {
 public:
  // `interrupted` may be empty, is called on the calling thread alone, and outlives the object.
  explicit BroadcastProgress(const std::function<bool()>& interrupted) : interrupted_(interrupted) {}

  // --- the reading thread
  // Waits until the window is placed; false: this rank gives up.
  bool await_placed(std::size_t window) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stop_.is_set() || placed_ > window; });
    return !stop_.is_set();
  }
  void add_read(std::size_t window) { advance(read_, window + 1); }

  // --- the placing thread
  // Waits until the window was broadcast; false: this rank gives up. The placing ends with end_placing().
  bool begin_placing(std::size_t window) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stop_.is_set() || broadcast_ > window; });
    is_placing_ = !stop_.is_set();
    return is_placing_;
  }
  void end_placing(std::size_t window, const Result<void>& placed) {
    const std::lock_guard lock(mutex_);
    is_placing_ = false;
    if (placed)
      placed_ = window + 1;
    else
      keep(placed.error());
    changed_.notify_all();
  }

  // --- the calling thread. The waits end with an interruption too, which is a failure of this rank.
  // False: this rank gives up.
  bool await_read(std::size_t window) {
    return await_here([&] { return stop_.is_set() || read_ > window; });
  }
  bool await_all_placed(std::size_t count) {
    return await_here([&] { return stop_.is_set() || placed_ == count; });
  }
  // Waits until the buffer of a placed window is free, for a rank that gives up too.
  void await_free(std::optional<std::size_t> window) {
    await_here([&] { return stop_.is_set() ? !is_placing_ : !window || placed_ > *window; });
  }
  void add_broadcast(std::size_t window) { advance(broadcast_, window + 1); }
  void fail_if_interrupted() {
    if (!interrupted_) return;
    const Result<void> asked = attempt([this]() -> Result<void> {
      if (!interrupted_()) return {};
      return Error(ErrorCode::kCancelled, "interrupted");
    });
    if (!asked) fail(asked.error());
  }

  // --- any thread
  // Set when this rank gives up.
  const os::StopFlag& stop() const { return stop_; }
  // The first failure counts. This rank places and reads nothing more.
  void fail(const Error& error) {
    const std::lock_guard lock(mutex_);
    keep(error);
    changed_.notify_all();
  }
  void give_up() {
    const std::lock_guard lock(mutex_);
    stop_.set();
    changed_.notify_all();
  }
  bool gives_up() const {
    const std::lock_guard lock(mutex_);
    return stop_.is_set();
  }
  std::optional<Error> failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

 private:
  static constexpr std::chrono::milliseconds kInterruptionInterval{20};

  void keep(const Error& error) {
    if (!failure_) failure_ = error;
    stop_.set();
  }
  void advance(std::size_t& count, std::size_t value) {
    const std::lock_guard lock(mutex_);
    count = value;
    changed_.notify_all();
  }
  template <typename Condition>
  bool await_here(const Condition& is_reached) {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kInterruptionInterval, is_reached)) {
      lock.unlock();
      fail_if_interrupted();
      lock.lock();
    }
    return !stop_.is_set();
  }

  const std::function<bool()>& interrupted_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t read_ = 0;  // the last own window that was read, plus 1
  std::size_t broadcast_ = 0;
  std::size_t placed_ = 0;
  bool is_placing_ = false;
  os::StopFlag stop_;  // set while the mutex is held: this rank gives up
  std::optional<Error> failure_;
};

}  // namespace cairn::checkpointer

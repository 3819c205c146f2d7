#include "os/signal_watch.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "os/signal_action.h"
#include "os/start_thread.h"

namespace cairn::os {
namespace {

constexpr int kSignalMax = 64;
constexpr std::size_t kWatchesMax = 16;  // of a signal, at a time
constexpr std::int64_t kNanosecondsPerSecond = 1'000'000'000;
constexpr std::int64_t kOneArrival = 2 * kNanosecondsPerSecond;  // later arrivals of this time count as the first

// Of a watched signal. The handler reads the slot; only start() and the destructor, one at a time, write to it.
struct Slot {
  std::atomic<pid_t> owner{0};
  std::array<std::atomic<int>, kWatchesMax> wakes;  // one more than the eventfd of each watch; 0: free
  std::atomic<std::int64_t> arrived_at{0};          // by the monotonic clock, in nanoseconds; 0: not yet
  struct sigaction before = {};
  bool calls_before = true;
};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<pid_t>::is_always_lock_free);

std::array<Slot, kSignalMax + 1> slots;
std::mutex watching;     // start() and the destructor
std::vector<int> wakes;  // eventfds of earlier watches: never closed, because a handler may be about to write to one

bool asks_to_end(int signal) { return signal == SIGTERM || signal == SIGINT; }

std::int64_t now() {
  timespec time = {};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return std::int64_t{time.tv_sec} * kNanosecondsPerSecond + time.tv_nsec;
}

// Async-signal-safe.
void handle(int signal, siginfo_t* info, void* context) {
  const int error_number = errno;
  Slot& slot = slots[static_cast<std::size_t>(signal)];
  const bool is_child = slot.owner.load() != getpid();
  std::int64_t arrived_at = 0;
  if (!is_child && slot.arrived_at.compare_exchange_strong(arrived_at, now())) {  // (1)
    const std::uint64_t one = 1;
    for (const std::atomic<int>& wake : slot.wakes) {
      if (const int next = wake.load(); next > 0) (void)!write(next - 1, &one, sizeof one);
    }
    if (slot.calls_before && has_handler(slot.before)) call(slot.before, signal, info, context);
  } else if (is_child ? asks_to_end(signal) || !is_default(slot.before) : now() - arrived_at >= kOneArrival) {  // 2, 3
    take_back(signal, slot.before);
  }
  errno = error_number;
}

bool is_watched(const Slot& slot) {
  return std::any_of(slot.wakes.begin(), slot.wakes.end(), [](const std::atomic<int>& wake) { return wake > 0; });
}

Result<void> install(int signal, bool calls_before) {
  Slot& slot = slots[static_cast<std::size_t>(signal)];
  if (sigaction(signal, nullptr, &slot.before) != 0) return uncatchable(signal);
  slot.calls_before = calls_before;
  slot.owner = getpid();
  slot.arrived_at = 0;
  return handle_with(signal, handle);
}

Result<void> watch(int signal, int wake, bool calls_before) {
  if (signal < 1 || signal > kSignalMax) {
    return Error(ErrorCode::kInvalidArgument, "no signal has the number " + std::to_string(signal));
  }
  Slot& slot = slots[static_cast<std::size_t>(signal)];
  if (!is_watched(slot)) CAIRN_TRY(install(signal, calls_before));
  const auto free = std::find(slot.wakes.begin(), slot.wakes.end(), 0);
  if (free == slot.wakes.end()) {
    return Error(ErrorCode::kInvalidArgument, "signal " + std::to_string(signal) + " is watched too often")
        .expected("at most " + std::to_string(kWatchesMax) + " watches at a time");
  }
  *free = wake + 1;
  return {};
}

void unwatch(int signal, int wake) {
  Slot& slot = slots[static_cast<std::size_t>(signal)];
  std::replace_if(
      slot.wakes.begin(), slot.wakes.end(), [wake](const auto& it) { return it == wake + 1; }, 0);
  if (is_watched(slot)) return;
  struct sigaction now = {};
  const bool is_ours = sigaction(signal, nullptr, &now) == 0 && is_handled_by(now, handle);
  if (is_ours) sigaction(signal, &slot.before, nullptr);
}

Result<int> take_wake() {
  const std::lock_guard lock(watching);
  if (wakes.empty()) {
    const int wake = eventfd(0, EFD_CLOEXEC);
    return wake >= 0 ? Result<int>(wake) : Error::from_errno(errno, "eventfd");
  }
  const int wake = wakes.back();
  wakes.pop_back();
  return wake;
}

}  // namespace

class SignalWatch::Impl {
 public:
  Impl(int wake, Seen seen) : wake_(wake), seen_(std::move(seen)) {}
  ~Impl() {
    {
      const std::lock_guard lock(watching);
      for (const int signal : signals_) unwatch(signal, wake_);
    }
    ends_ = true;
    const std::uint64_t one = 1;
    (void)!write(wake_, &one, sizeof one);
    if (thread_.joinable()) thread_.join();
    const std::lock_guard lock(watching);
    wakes.push_back(wake_);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Result<void> start(const std::vector<int>& signals, const std::vector<int>& uncalled) {
    CAIRN_TRY_ASSIGN(thread_, start_thread<std::thread>("to watch signals", [this] { run(); }));
    const std::lock_guard lock(watching);
    for (const int signal : signals) {
      CAIRN_TRY(watch(signal, wake_, std::find(uncalled.begin(), uncalled.end(), signal) == uncalled.end()));
      signals_.push_back(signal);
    }
    return {};
  }

 private:
  void run() {
    std::array<bool, kSignalMax + 1> told = {};
    while (true) {
      std::uint64_t count = 0;
      if (read(wake_, &count, sizeof count) < 0 && errno != EINTR) return;
      if (ends_) return;
      for (std::size_t signal = 1; signal < slots.size(); ++signal) {
        const Slot& slot = slots[signal];
        const bool is_mine = std::find(slot.wakes.begin(), slot.wakes.end(), wake_ + 1) != slot.wakes.end();
        if (told[signal] || !is_mine || slot.arrived_at < started_) continue;
        told[signal] = true;
        seen_(static_cast<int>(signal));
      }
    }
  }

  const int wake_;
  const std::int64_t started_ = now();
  const Seen seen_;
  std::vector<int> signals_;
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

SignalWatch::SignalWatch(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SignalWatch::~SignalWatch() = default;

Result<std::unique_ptr<SignalWatch>> SignalWatch::start(const std::vector<int>& signals, Seen seen,
                                                        const std::vector<int>& uncalled) {
  CAIRN_TRY_ASSIGN(const int wake, take_wake());
  auto impl = std::make_unique<Impl>(wake, std::move(seen));
  CAIRN_TRY(impl->start(signals, uncalled));
  return std::make_unique<SignalWatch>(std::move(impl));
}

}  // namespace cairn::os

// OperationWatch: the calls into a storage that are under way, and for how long each has not returned.
//
// A call that hangs in the kernel can't be cancelled, and the thread that made it can't judge it. Another thread calls
// tick() at regular intervals, at least every two seconds, and asks overdue(). The ages are sums of these intervals: an
// interval counts with two seconds at most, so that the time in which this process was itself stopped is left out.
//
// A storage that syncs may keep every other call waiting. So while a sync is under way only syncs age, and the calls of
// a heartbeat age only while there is no other call.
//
// Thread-safe.
#pragma once

#include <cairn/save_deadlines.h>

#include <chrono>
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace cairn::storage {

enum class OperationKind : std::uint8_t {
  kWrite,      // of a part of a data file
  kSync,       // of a file or a directory
  kNames,      // opens, makes, lists, reads, renames or removes something
  kHeartbeat,  // of a lease
};

// How long one call of this kind may take.
std::chrono::milliseconds limit_of(OperationKind kind, const SaveDeadlines& deadlines);

struct PendingOperation {
  OperationKind kind = OperationKind::kWrite;
  std::string what;  // "writing '__0_0.distcp'"
  std::chrono::milliseconds age{};
};

class OperationWatch {
 public:
  using Clock = std::chrono::steady_clock;

  // The call returns when this is destroyed. The watch outlives it.
  class Call {
   public:
    Call(OperationWatch& watch, OperationKind kind, std::string_view action, std::string_view name);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    OperationWatch& watch_;
    std::list<PendingOperation>::iterator call_;
  };

  void tick(Clock::time_point now);
  // The call that has aged most; nullopt if none is under way.
  std::optional<PendingOperation> oldest() const;
  // One that is older than its limit.
  std::optional<PendingOperation> overdue(const SaveDeadlines& deadlines) const;
  bool is_syncing() const;

 private:
  // Whether calls of this kind age now. Under the lock.
  bool ages(OperationKind kind) const;
  bool has(OperationKind kind) const;

  mutable std::mutex mutex_;
  std::list<PendingOperation> calls_;
  std::optional<Clock::time_point> last_tick_;
};

}  // namespace cairn::storage

// OperationWatch: the pending calls into a storage, and the age of each.
//
// Cairn can't cancel a call that hangs in the kernel, and the calling thread can't watch its own call. A second thread
// calls tick() at least every two seconds and asks overdue(). An age is the sum of the intervals between the ticks. An
// interval counts for at most two seconds: time for which the process was stopped does not count.
//
// A storage that syncs may delay all calls. While a sync is pending, only syncs age. Heartbeats age only while no call
// of another kind is pending.
//
// Thread-safe.
#pragma once

#include <cairn/options.h>
#include <cairn/result.h>

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
  kNames,      // opens, makes, lists, reads, renames or removes a file or folder, or takes a lock
  kHeartbeat,  // of a lease
};

// The time that one call of the kind may take.
std::chrono::milliseconds limit_of(OperationKind kind, const SaveDeadlines& deadlines);

struct PendingOperation {
  OperationKind kind = OperationKind::kWrite;
  std::string what;  // "writing '__0_0.distcp'"
  std::chrono::milliseconds age{};
};

// The reason to give up the work that waits for the pending call.
Error stall(const PendingOperation& pending, const SaveDeadlines& deadlines);

class OperationWatch {
 public:
  using Clock = std::chrono::steady_clock;

  // A pending call, from construction to destruction. The watch outlives the call.
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
  // The call of the greatest age; nullopt if no call is pending.
  std::optional<PendingOperation> oldest() const;
  // A call older than the limit of its kind; nullopt if no call is too old.
  std::optional<PendingOperation> overdue(const SaveDeadlines& deadlines) const;
  bool is_syncing() const;

 private:
  // Whether calls of `kind` age now. The caller holds mutex_.
  bool ages(OperationKind kind) const;
  bool has(OperationKind kind) const;

  mutable std::mutex mutex_;
  std::list<PendingOperation> calls_;
  std::optional<Clock::time_point> last_tick_;
};

}  // namespace cairn::storage

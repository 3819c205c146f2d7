// LeaseWatch: reads a lease repeatedly, and tells whether the holder lives and whether the holder's save progresses.
//
// One thread at a time. Silence is measured by the watcher's clock, from the first look on, because clocks of hosts may
// differ. The age of the holder's pending call is measured by the holder and written into the lease.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "commit/lease.h"
#include "storage/storage.h"

namespace cairn::commit {

// Between two looks at the liveness of processes: checking a process costs more than listing a folder.
inline constexpr std::chrono::milliseconds kLivenessInterval{100};

class LeaseWatch {
 public:
  // `storage` must outlive the watch. `name` is relative to the checkpoint's directory.
  LeaseWatch(const storage::Storage& storage, std::string name) : storage_(storage), name_(std::move(name)) {}

  enum class Liveness : std::uint8_t {
    kAbsent,  // the lease does not exist: not yet, or not any more
    kAlive,   // as far as this host can see
    kDead,    // the holder's process is dead, and does nothing any more; or the lease was closed
    kSilent,  // no heartbeat for `deadlines.progress`, at least for a few beats, at two looks; or no look succeeds for
              // as long: the holder may resume
    kStuck,   // the holder's process lives, but a call into the storage has exceeded `deadlines`
  };
  using Clock = std::chrono::steady_clock;
  // A test gives `now`.
  Liveness look(const SaveDeadlines& deadlines, Clock::time_point now = Clock::now());
  // Whether the last look() found a lease that was touched since the look before.
  bool was_touched() const { return was_touched_; }
  // Whether the folder of the lease holds the decision on the save, as a lease in a storage without a rename tells.
  bool is_decided() const { return holder_ && holder_->is_decided; }
  // Whether the holder's process is dead, without a call into the storage. False before the lease has been read.
  bool holder_is_dead() const;

  // After kStuck: the call that has exceeded its deadline.
  const std::optional<Error>& stall() const { return stall_; }
  // "host h, pid 7", once the lease has been read.
  std::string holder() const;

 private:
  // Reads when the lease was touched, or its version. Whether the lease was touched since the last call.
  Result<bool> find_touch();

  const storage::Storage& storage_;
  std::string name_;
  std::optional<LeaseHolder> holder_;
  std::optional<Error> stall_;
  double touched_at_ = 0;  // by the storage's clock: only changes of the value have a meaning
  std::string tag_;        // in its place, in a storage without a rename
  bool was_touched_ = false;
  int unchanged_looks_ = 0;                         // since the last sign
  std::optional<Clock::time_point> failing_since_;  // the lease can't be looked at
  std::optional<Clock::time_point> last_sign_;
};

}  // namespace cairn::commit

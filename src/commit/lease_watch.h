// LeaseWatch: looks at one lease again and again, and says whether its holder lives and whether its save gets on.
//
// One thread at a time. Silence is measured by the watcher's own clock, from its first look on: clocks of hosts may
// differ. How long a call of the holder has not returned is measured by the holder, and written into the lease.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "commit/lease.h"
#include "storage/storage.h"

namespace cairn::commit {

class LeaseWatch {
 public:
  // `storage` outlives it; `name` is relative to the checkpoint's directory.
  LeaseWatch(const storage::Storage& storage, std::string name) : storage_(storage), name_(std::move(name)) {}

  enum class Liveness : std::uint8_t {
    kAbsent,  // no such lease: not yet, or not any more
    kAlive,   // as far as can be seen
    kDead,    // its process is gone: it does nothing any more
    kSilent,  // no heartbeat for `deadlines.progress`, or for a few beats if that is longer: it may come back
    kStuck,   // its process lives, but a call into the storage has lasted longer than `deadlines` allow
  };
  Liveness look(const SaveDeadlines& deadlines);

  // After kStuck: which call it is.
  const std::optional<Error>& stall() const { return stall_; }
  // "host h, pid 7", once the lease was seen.
  std::string holder() const;

 private:
  using Clock = std::chrono::steady_clock;

  const storage::Storage& storage_;
  std::string name_;
  std::optional<LeaseHolder> holder_;
  std::optional<Error> stall_;
  double touched_at_ = 0;  // on the storage's clock: only its changes mean anything
  std::optional<Clock::time_point> last_sign_;
};

}  // namespace cairn::commit

// StorageClock: what time it is by the clock that a storage takes its times of change from. The clock of a host may be
// minutes off from that of a file server, so the age of a file is never judged by the host's clock where the caller may
// change the directory.
//
// Thread-safe. The storage outlives it.
#pragma once

#include <cairn/result.h>

#include <string>

#include "storage/storage.h"

namespace cairn::commit {

class StorageClock {
 public:
  // The storage's clock: now() touches `own_file`, a file of this process, and reads its time of change. A file that is
  // not there is made for the moment and removed again.
  StorageClock(storage::Storage& storage, std::string own_file) : storage_(&storage), own_file_(std::move(own_file)) {}
  // The clock of this host, for a caller that must change nothing.
  static StorageClock of_this_host() { return {}; }

  // Seconds since the epoch.
  Result<double> now() const;

 private:
  StorageClock() = default;

  storage::Storage* storage_ = nullptr;  // null: the host's clock
  std::string own_file_;
};

}  // namespace cairn::commit

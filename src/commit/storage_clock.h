// StorageClock: the current time by the clock from which a storage takes modification times. The clocks of a host and
// of a file server may differ by minutes: if the caller may change the directory, the age of a file is never computed
// from the host's clock.
//
// Thread-safe. The storage must outlive the clock.
#pragma once

#include <cairn/result.h>

#include <string>

#include "storage/storage.h"

namespace cairn::commit {

class StorageClock {
 public:
  // The storage's clock: now() touches `own_file`, a file of this process, and reads the modification time. If
  // `own_file` does not exist, now() creates the file and removes the file again.
  StorageClock(storage::Storage& storage, std::string own_file) : storage_(&storage), own_file_(std::move(own_file)) {}
  // For a caller whose process has no file in the private folder: now() makes a file there.
  static StorageClock in_folder(storage::Storage& storage, const std::string& folder) {
    return {storage, folder + "/clock"};
  }
  // The clock of the host, for callers without permission to change the directory.
  static StorageClock of_this_host() { return {}; }

  // For callers that change nothing: the storage's clock if the storage tells the time without a change, else the
  // host's.
  static StorageClock without_change(const storage::Storage& storage) {
    StorageClock clock;
    if (!storage.has_rename()) clock.asked_ = &storage;
    return clock;
  }

  // Seconds since the epoch.
  Result<double> now() const;

 private:
  StorageClock() = default;

  storage::Storage* storage_ = nullptr;  // null: the host's clock, or that of `asked_`
  const storage::Storage* asked_ = nullptr;
  std::string own_file_;
};

}  // namespace cairn::commit

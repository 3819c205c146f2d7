// ManagingLease: a root has one managing process at a time. The lease is the file `.cairn-manager` in the root
// (commit/lease.h). The steps are at the top of managing_lease.cc.
#pragma once

#include <cairn/result.h>

#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>

#include "commit/lease.h"
#include "storage/storage.h"

namespace cairn::run {

// A process that did not remove its lease, in seconds since 1970.
struct FailedProcess {
  double started = 0;    // by the clock of its host; 0: unknown
  double last_sign = 0;  // its last sign of life, by the clock of the storage
};

// Calls into the storage that a caller waits for have 5 seconds each: the thread of a call that hangs is left behind,
// and keeps the object.
class ManagingLease : public std::enable_shared_from_this<ManagingLease> {
 public:
  // Makes the root. kUnavailable if a living process of this host holds the lease. If a process of another host may
  // hold it, a thread looks for its heartbeat, and confirm() knows the answer.
  static Result<std::shared_ptr<ManagingLease>> take(const std::filesystem::path& root);
  // Without end() the destructor leaves the file, as a killed process does.
  ~ManagingLease() { outlasting_ends_.request_stop(); }

  // Waits, 30 s at most, until it is certain that this process manages the root. kUnavailable if a living process holds
  // the lease, or has taken it over, or if the lease was removed. Afterwards, no error if the storage does not answer.
  Result<void> confirm();
  // Whether the lease in the root is this process's, as far as the file tells. After confirm(); from any thread.
  Result<bool> is_mine() const;
  // The process before, if it has failed. Known after take(), or after confirm() if the process may be on another host.
  std::optional<FailedProcess> failed_before() const;
  // Removes the lease, if it is this process's. `has_failed`: leaves the lease as of a process that has failed, for
  // failed_before() of the next process.
  Result<void> end(bool has_failed);

 private:
  explicit ManagingLease(std::unique_ptr<storage::Storage> storage);
  Result<bool> try_to_take(const std::optional<std::string>& dead);
  Result<void> outlast();
  Result<bool> is_mine_soon();
  Result<void> give_up(bool has_failed);

  std::unique_ptr<storage::Storage> storage_;
  commit::SaveIdentity identity_;
  mutable std::mutex mutex_;
  std::optional<FailedProcess> failed_;
  std::optional<commit::Lease> lease_;
  std::future<Result<void>> outlasting_;
  std::future<Result<bool>> looking_;
  std::stop_source outlasting_ends_;
};

}  // namespace cairn::run

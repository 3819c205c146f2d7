// TaggedLease: the lease of a save or rank in a storage without a rename. Each text is written with the condition that
// the text before is still in place, so that a lease has a single history: the holder's heartbeats and announced
// commits, and at most one closing by another process (closed_lease.h).
//
// Thread-safe. `storage` must outlive the lease.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "commit/lease.h"
#include "storage/storage.h"

namespace cairn::commit {

class TaggedLease {
 public:
  // Creates the file `name`. `identity`: the first lines of the text. Fails with EEXIST if the file exists.
  static Result<std::shared_ptr<TaggedLease>> take(storage::Storage& storage, std::string name, std::string identity,
                                                   Lease::Progress progress);

  // A heartbeat. kUnavailable, at this call and at all later calls, if the lease was closed or removed.
  Result<void> beat();
  // As beat(). After success the lease holds `commit` until the next call.
  Result<void> announce(const AnnouncedCommit& commit);

 private:
  TaggedLease(storage::Storage& storage, std::string name, std::string identity, Lease::Progress progress);
  std::string text() const;
  Result<void> create();
  Result<void> write();
  Error lost() const;

  storage::Storage& storage_;
  const std::string name_;
  const std::string identity_;
  const SaveId save_id_;
  const Lease::Progress progress_;
  std::mutex mutex_;
  std::string tag_;
  std::uint64_t beats_ = 0;
  std::optional<AnnouncedCommit> commit_;
  bool is_decided_ = false;
  bool is_lost_ = false;
};

}  // namespace cairn::commit

// leave_dead_lease: makes a save look as if its process had been killed. For tests.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "commit/lease.h"
#include "os/process_identity.h"
#include "storage/storage.h"

namespace cairn::commit {

// Puts the lease `lease_name` of an ended process of this host into the private folder `folder`. Replaces an existing
// lease.
inline void leave_dead_lease(storage::Storage& storage, const std::string& folder,
                             std::string_view lease_name = kLeaseName) {
  const os::ProcessIdentity process = os::ProcessIdentity::mine();
  const std::string lease = "cairn-lease 1\nhost " + process.host + "\nboot " + process.boot_id + "\nnamespace " +
                            process.pid_namespace + "\npid 1\nstart 1\n";
  const std::string name = folder + "/" + std::string(lease_name);
  ASSERT_TRUE(storage.remove(name));
  ASSERT_TRUE(storage.create_whole(name, lease, Durability::kBuffered));
}

}  // namespace cairn::commit

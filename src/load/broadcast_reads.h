// BroadcastReads: the reads of a load that several ranks have in common, for a load that reads each byte once per job
// and broadcasts the bytes (LoadOptions::broadcast_replicas).
//
// 1. take(), before any target changes: takes the reads of each group (ReadGroup) that may be broadcast, cuts them into
//    windows, and allocates the buffers.
// 2. The ranks exchange numbers(). Ranks with equal numbers are the members of a group.
// 3. choose(): a group is broadcast if it has several members on several hosts, and if the transport has a group of the
//    members. Members on one host read once by the page cache of the host (shared_reads.h). The reads of the remaining
//    groups go back to the caller.
// 4. run(): the members broadcast the windows (window_broadcast.h), group by group, in equal order on all ranks.
#pragma once

#include <cairn/collectives.h>
#include <cairn/result.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "load/shared_reads.h"
#include "load/window_broadcast.h"

namespace cairn::checkpointer {

class BroadcastReads {
 public:
  // By group; 0: no windows.
  using Numbers = SharedReads::Numbers;

  // 1. The members of a load's two lists that belong together have equal indices. Reads that keep their order stay.
  void take(std::vector<data_file::TensorRead>& reads, std::vector<ReadGroup>& groups, const BroadcastOptions& options);
  Numbers numbers() const;
  // 3. `broadcast_numbers` and `host_numbers` (SharedReads) are those of all ranks. Appends to the load's lists.
  Result<void> choose(const std::vector<Numbers>& broadcast_numbers,
                      const std::vector<SharedReads::Numbers>& host_numbers, Collectives& all,
                      std::vector<data_file::TensorRead>& reads, std::vector<ReadGroup>& groups);
  // 4. Ends at once if the outcome has_left().
  BroadcastOutcome run();
  // Of the reads that are broadcast. After choose().
  std::uint64_t bytes_needed() const;

 private:
  struct Group {
    std::unique_ptr<WindowBroadcast> windows;  // null: the reads are the caller's
    Collectives* members = nullptr;
  };
  std::array<Group, kReadGroupCount> groups_;
  std::unique_ptr<WindowBuffers> buffers_;
};

}  // namespace cairn::checkpointer

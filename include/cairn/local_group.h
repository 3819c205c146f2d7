// Local group: threads of a process as the ranks of a save or load.
#pragma once

#include <cairn/collectives.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

namespace cairn {

// Returns a Collectives for each of `rank_count` ranks, by rank, for a thread each. The objects have independent
// lifetimes.
//
// A rank leaves the group when its object is destroyed, or when a call of the object fails. The remaining ranks can
// finish the calls that the rank has made. A call that needs a missing call of the rank fails at once, also if threads
// already wait in the call. A thread that gives up therefore only destroys its object. `timeout` is the longest wait of
// a call for the remaining ranks.
std::vector<std::unique_ptr<Collectives>> make_local_group(
    std::size_t rank_count, std::optional<std::chrono::milliseconds> timeout = std::nullopt);

}  // namespace cairn

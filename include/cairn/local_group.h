// Local group: threads of one process as the ranks of a save or load.
#pragma once

#include <cairn/collectives.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

namespace cairn {

// One Collectives for each of `rank_count` ranks, by rank; each thread takes its own. They may outlive one another.
//
// A rank leaves when its object is destroyed or a call of it fails. The others can then finish the calls that it has
// made; whatever needs a call that it never made fails at once, also where somebody waits already. So a thread that
// gives up need only let go of its object. `timeout` is how long one call may wait for the other ranks.
std::vector<std::unique_ptr<Collectives>> make_local_group(
    std::size_t rank_count, std::optional<std::chrono::milliseconds> timeout = std::nullopt);

}  // namespace cairn

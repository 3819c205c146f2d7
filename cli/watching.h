// `cairn watch`: a line for each save in flight, again and again.
#pragma once

#include <chrono>
#include <filesystem>

#include "outcome.h"

namespace cairn::cli {

struct WatchOptions {
  std::chrono::milliseconds interval{1000};  // between two looks
  bool until_idle = false;                   // end when no process works on a save
  bool json = false;                         // a JSON object in a line for each look
};

// Looks until SIGINT or SIGTERM, by which the process then ends. On a terminal the lines of the saves in flight are
// redrawn in place; elsewhere each save has a line every ten seconds. The end of a save has a line that stays. With
// `until_idle`: kCheckFailed if a save has ended, or has died, without a checkpoint. kUnreadable if `root` can't be
// listed at the first look; later such failures are messages, and the next look follows.
Outcome watch(const std::filesystem::path& root, const WatchOptions& options);

}  // namespace cairn::cli

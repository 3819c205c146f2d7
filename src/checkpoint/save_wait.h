// wait_for_saves: a writer that outlived its trainer may be about to commit.
#pragma once

#include <cairn/result.h>

#include <chrono>
#include <filesystem>
#include <functional>

namespace cairn::checkpointer {

// Returns when no save is in flight in `root` or in its directories, and after `wait_max` at the latest. kCancelled
// after a first true of `interrupted`, which may be empty.
Result<void> wait_for_saves(const std::filesystem::path& root, std::chrono::milliseconds wait_max,
                            const std::function<bool()>& interrupted);

}  // namespace cairn::checkpointer

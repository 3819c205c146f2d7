// wait_for_saves: a writer that outlived its trainer may be about to commit.
#pragma once

#include <cairn/result.h>

#include <chrono>
#include <filesystem>
#include <functional>

namespace cairn::checkpointer {

// Returns when no save is in flight in `root` or in its directories, and after `wait_max` at the latest: false if a
// save is in flight then. With a `wait_max` of 0 the call does not look, and returns true. kCancelled after a first
// true of `interrupted`, which may be empty.
Result<bool> wait_for_saves(const std::filesystem::path& root, std::chrono::milliseconds wait_max,
                            const std::function<bool()>& interrupted);

}  // namespace cairn::checkpointer

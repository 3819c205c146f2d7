// latest: the newest checkpoint to resume from, also right after a crash, when a writer may still be at work.
#pragma once

#include <cairn/result.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>

namespace cairn {

struct LatestOptions {
  // How long to wait for saves in flight: a writer that outlived its trainer may be about to commit.
  std::chrono::milliseconds wait{0};
  // Counts what this rank saved alone (`__{rank}.metadata`) too.
  std::optional<std::uint32_t> rank = {};
  // Asked often while waiting; once it says true the result is kCancelled.
  std::function<bool()> interrupted = {};
};

// Looks at `root` itself and the directories in it, and returns the one with the newest commit: by the time of its
// `.metadata`, then by the number of the save. One whose files are not all there, as its commit record names them, does
// not count; a checkpoint of stock torch has no such record and counts as it is. Nullopt if there is none, or no
// `root`.
Result<std::optional<std::filesystem::path>> latest(const std::filesystem::path& root,
                                                    const LatestOptions& options = {});

}  // namespace cairn

// latest: the newest checkpoint to resume from, also right after a crash, when a writer may still be at work.
#pragma once

#include <cairn/error.h>
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
  // Called on the calling thread, before latest() returns, for each checkpoint that may be newer than the result and
  // can't be used (a data file is missing or has another size, the metadata can't be read), and with kNotFound if
  // `root` does not exist. The error names the directory.
  std::function<void(const Error&)> passed_over = {};
};

// Looks at `root` itself and the directories in it, and returns the one that holds the newest checkpoint; nullopt if
// none does, or if `root` does not exist. kInvalidArgument if `root` is not a directory, kUnavailable if it can't be
// listed.
//
// Cairn's checkpoints are ordered by their commit records: by the start of the job, then by the number of the save
// within the job, then by the last number in the directory's name. Times of files do not count: saves may overlap, and
// `cp` and `touch` change times. A job that has opened a checkpoint starts after that checkpoint's job, so the order
// does not depend on the clocks of hosts either. Checkpoints without a start (stock torch, Cairn before version 2 of
// the commit record) are ordered by the time of `.metadata`, then by the last number in the directory's name. Of the
// newest of both kinds, the one with the later time of `.metadata` is returned.
//
// A checkpoint whose data files are not all there, with the sizes that its commit record names, does not count. A
// checkpoint of stock torch has no such record; it counts if its pickle is not cut short. Saves of this process are
// ordered after every checkpoint that this call has seen.
Result<std::optional<std::filesystem::path>> latest(const std::filesystem::path& root,
                                                    const LatestOptions& options = {});

}  // namespace cairn

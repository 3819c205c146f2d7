// latest: the newest checkpoint to resume from, also right after a crash, while a writer may still be writing.
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
  // The longest wait for saves in flight: a writer that outlived its trainer may be about to commit.
  std::chrono::milliseconds wait{0};
  // Also counts checkpoints that this rank saved alone (`__{rank}.metadata`).
  std::optional<std::uint32_t> rank = {};
  // Called often during the wait; after a first true the result is kCancelled.
  std::function<bool()> interrupted = {};
  // Called on the calling thread, before latest() returns, for each unusable checkpoint that may be newer than the
  // result (a data file is missing or has a wrong size, the metadata can't be read), and with kNotFound if `root` does
  // not exist. The error names the directory.
  std::function<void(const Error&)> passed_over = {};
};

// Returns the directory with the newest checkpoint, among `root` itself and the directories in `root`. Nullopt if no
// directory holds a checkpoint, or if `root` does not exist. kInvalidArgument if `root` is not a directory,
// kUnavailable if `root` can't be listed.
//
// Cairn's checkpoints are ordered by their commit records: by the start of the job, then by the number of the save
// within the job, then by the last number in the directory's name. Times of files do not count: saves may overlap, and
// `cp` and `touch` change times. A job that has opened a checkpoint starts after the checkpoint's job: the order
// does not depend on the clocks of hosts. Checkpoints without a start (stock torch, Cairn before version 2 of
// the commit record) are ordered by the time of `.metadata`, then by the last number in the directory's name. Of the
// newest of both kinds, the one with the later time of `.metadata` is returned. The time of a link is the link's own.
//
// A copy by convert() never ranks before the saves of its source's run. A copy of a DCP checkpoint with all its keys
// and values comes right after the original, whose start and number the copy has. Any other copy, and a copy of a
// checkpoint without a start, comes after all other checkpoints; such copies are ordered by the time of `.metadata`.
//
// A checkpoint counts only if all data files of its commit record are present with the recorded sizes. A checkpoint of
// stock torch has no commit record, and counts if its pickle is complete. Later saves of this process are ordered after
// every checkpoint that this call has read.
//
// If no directory holds a DCP checkpoint, not even an unusable one, the result is the directory with the newest
// safetensors model that Cairn has saved, in the order of saves. A model counts only if it can be opened: all files are
// there, and belong to one save. Models of other programs do not count: `root` may also hold the model that a training
// began with.
Result<std::optional<std::filesystem::path>> latest(const std::filesystem::path& root,
                                                    const LatestOptions& options = {});

}  // namespace cairn

// SaveDeadlines: the longest waits of a save for the storage and for ranks.
#pragma once

#include <chrono>

namespace cairn {

// If a save makes no progress for a deadline, the save fails on every rank. Each deadline limits a single call of the
// operating system, or the wait for a single sign of life: a slow save that makes progress is never given up. The
// deadlines apply to every save: save(), its steps (cairn/save_steps.h) and AsyncCheckpointer. If the storage of a rank
// hangs, the remaining ranks wait in Collectives at most for a deadline; time-outs of the Collectives should be longer.
struct SaveDeadlines {
  // For a write of at most 4 MiB. In asynchronous saves also for the next bytes of a staging trainer, and for a sign of
  // life of a rank or a writer. A rank counts as silent after 20 s at the earliest (docs/asynchronous.md).
  std::chrono::milliseconds progress{std::chrono::minutes(5)};
  // For an fsync, which shows no bytes and may write as much as the page cache has held back.
  std::chrono::milliseconds sync{std::chrono::minutes(30)};
  // For a call that opens, makes, lists, renames or removes a file or directory. Publishing and committing consist of
  // these calls. A busy file server may queue a call behind the data of its clients.
  std::chrono::milliseconds publish{std::chrono::minutes(10)};
};

}  // namespace cairn

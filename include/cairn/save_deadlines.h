// How long a save waits for the storage and for other ranks.
#pragma once

#include <chrono>

namespace cairn {

// How long a save may get nowhere before it fails, on every rank. A save that gets on is never given up, however slow
// the storage is: each limit is for one call of the operating system, or for one sign of life. They count for every
// save: save(), its steps (cairn/save_steps.h) and AsyncCheckpointer. A rank that waits in Collectives for a rank whose
// storage hangs waits for these limits at most; time-outs of the Collectives should be longer.
struct SaveDeadlines {
  // For a write of at most 4 MiB. In asynchronous saves also for the next bytes that a trainer stages, and for a sign
  // of life of a rank or a writer.
  std::chrono::milliseconds progress{std::chrono::minutes(5)};
  // For one fsync. It shows no bytes, and may have to write as much as the page cache held back.
  std::chrono::milliseconds sync{std::chrono::minutes(30)};
  // For one call that opens, makes, lists, renames or removes something: publishing and committing consist of these. A
  // busy file server may keep such a call waiting behind the data of other clients.
  std::chrono::milliseconds publish{std::chrono::minutes(10)};
};

}  // namespace cairn

// Durability, Verify, SaveDeadlines, TensorPassOptions: options that several calls have. SaveProgress: what several
// calls tell of a save.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

namespace cairn {

// Whether a save waits until its bytes survive a power cut.
enum class Durability : std::uint8_t {
  kDurable,   // a reported save survives a power cut: files and directories are synced before the commit
  kBuffered,  // no syncs: the checkpoint survives a kill, and a power cut may lose or damage the checkpoint
};

// The bytes that a load checks.
enum class Verify : std::uint8_t {
  kNeeded,  // check every byte read; in files without Cairn's checksums, only records that are read whole
  kFull,    // check every byte; in files without Cairn's checksums, read records whole to check them
  kNone,    // trust the storage
};

// The longest waits of a save for the storage and for ranks. If a save makes no progress for a deadline, the save fails
// on every rank. Each deadline limits a single call of the operating system, or the wait for a single sign of life: a
// slow save that makes progress is never given up. The deadlines apply to every save: save(), its steps (cairn/save.h)
// and AsyncCheckpointer. If the storage of a rank hangs, the remaining ranks wait in Collectives at most for a
// deadline; time-outs of the Collectives should be longer.
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

// Options of a pass over all elements of a tensor.
struct TensorPassOptions {
  std::size_t thread_count = 4;
  bool follow_links = false;  // data files may be symbolic links
  // kUnavailable if a call that opens or reads a file takes longer than `publish`.
  SaveDeadlines deadlines = {};
  // Both functions are called every few milliseconds, on the calling thread. After `interrupted` has returned true, the
  // result is kCancelled within a second: a call into the storage that hangs is left alone.
  std::function<bool()> interrupted = {};
  std::function<void(std::uint64_t bytes_done, std::uint64_t bytes_total)> progress = {};
};

enum class SavePhase : std::uint8_t {
  kStaging,     // the trainer copies its bytes
  kWriting,     // files are written
  kSyncing,     // files are synced: no bytes are counted
  kPublishing,  // files get their final names
  kWaiting,     // for the files of the remaining ranks, or for the coordinator's decision
  kCommitting,  // `.metadata` is renamed into place, and replaced files are removed
  kEnded,
};
std::string_view name_of(SavePhase phase);  // "staging" and so on

// Of a rank's part of a save.
struct SaveProgress {
  SavePhase phase = SavePhase::kStaging;
  std::uint64_t bytes_written = 0;  // of this rank's files
  std::uint64_t bytes_total = 0;    // 0 while unknown
};

}  // namespace cairn

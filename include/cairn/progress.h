// ProgressWatch: how far the calls into this process's engine are: saves, loads, verifications, conversions and the
// other calls that may take long. For a bar or a log; cairn/latest.h has the saves of other processes.
//
// Without a ProgressWatch nothing is listed. A call never waits for the thread that looks at a ProgressWatch.
#pragma once

#include <cairn/result.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {

enum class WorkKind : std::uint8_t {
  kSave,
  kLoad,
  kVerify,
  kRemove,  // of a checkpoint
  kPrune,   // with the removals of its checkpoints, which are works of their own
  kClean,   // of dead saves
  kRepair,
  kConvert,  // and the consolidation of a model
  kCompare,  // by diff()
  kRead,     // of a key: read_key()
  kExport,   // export_npy()
  kMerge,    // of a trace
  kExamine,  // of a machine
  kMeasure,  // bench_directory(), with its saves and loads, which are works of their own
};
std::string_view name_of(WorkKind kind);  // "saving" and so on

struct WorkInProgress {
  enum class State : std::uint8_t { kRunning, kSucceeded, kFailed };
  enum class Unit : std::uint8_t { kBytes, kFiles, kDirectories };

  std::uint64_t id = 0;  // unique in the process
  WorkKind kind = WorkKind::kSave;
  Unit unit = Unit::kBytes;
  bool asynchronous = false;  // of an AsyncCheckpointer's save, which ends when the checkpoint is committed
  std::string directory;      // as in Event
  std::uint32_t rank = 0;
  std::uint32_t rank_count = 1;  // 0: unknown, in a save of separate steps (SaveClaim, RankShare)
  State state = State::kRunning;
  std::chrono::nanoseconds elapsed{};  // since the begin, until the end
  std::uint64_t done = 0;              // of this rank's part; `total` after a success
  std::uint64_t total = 0;             // 0 while unknown
};
std::string_view name_of(WorkInProgress::Unit unit);  // "bytes" and so on

// Lists the works that begin during its life, until close(). One thread at a time, except for close(). Not for a forked
// child.
class ProgressWatch {
 public:
  ProgressWatch();
  ~ProgressWatch();
  ProgressWatch(const ProgressWatch&) = delete;
  ProgressWatch& operator=(const ProgressWatch&) = delete;

  // Waits until a work begins or ends, until close(), or for `time`. Returns the works that are running, and each that
  // has ended since the last call, in the order of their begins. At most 1000: then ended works are dropped first, and
  // further works are not listed.
  std::vector<WorkInProgress> take(std::chrono::milliseconds time);
  // No work is added any more. Those that are running stay until they end.
  void close();
  bool is_closed() const;

  struct Impl;  // the library's own

 private:
  const std::shared_ptr<Impl> impl_;  // shared with the works
};

}  // namespace cairn

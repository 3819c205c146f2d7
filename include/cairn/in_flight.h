// Saves in flight, and dead saves, in a directory and in the directories of the directory: saves of DCP checkpoints and
// of safetensors models.
#pragma once

#include <cairn/catalog.h>
#include <cairn/error.h>
#include <cairn/result.h>
#include <cairn/save_progress.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace cairn {

// A writing process of a save, by the process's lease.
struct SaveInFlightWriter {
  // kUnknown: the process runs on a different host or in a different container; only the heartbeat shows its state.
  enum class State : std::uint8_t { kAlive, kDead, kUnknown };

  std::optional<std::uint32_t> rank;  // nullopt: the coordinator, or the only rank
  std::string host;                   // empty if the lease can't be read
  std::int64_t pid = 0;
  State state = State::kUnknown;
  double seconds_since_sign = 0;  // since the last heartbeat; heartbeats come every five seconds
  bool is_readable = true;        // false: the lease can't be read, or is incomplete; all other fields are unknown

  // As of the last heartbeat. Nullopt: the lease has no progress.
  std::optional<SaveProgress> progress;
  // The longest call into the storage at the last heartbeat, for example "writing '__0_0.distcp'", and its duration.
  // The deadlines of a save limit the duration. Empty and 0 if no call was under way.
  std::string pending_call;
  double seconds_without_progress = 0;
};

struct SaveInFlight {
  // The result of the save, by the marks in its private folder.
  enum class Decision : std::uint8_t { kNone, kCommitted, kFailed };

  SaveId save_id;
  SaveId job_id;                            // zero if the lease can't be read; save_number too
  std::uint64_t save_number = 0;            // counts the saves of a job
  std::vector<SaveInFlightWriter> writers;  // the coordinator first
  std::vector<Error> failures;              // of failed ranks; each error has its rank
  Decision decision = Decision::kNone;
  // The leases have run out: no process works on the save any more. clean() removes the files, and so does the next
  // save of the same kind, checkpoint or model, into the same directory.
  bool is_leftover = false;
  // False if only a different user may enter the private folder: then only the save id is known.
  bool is_readable = true;
  std::filesystem::path directory;  // of the checkpoint: `root`, or a directory in `root`
};

// The saves in `root` itself by number, then the saves in each directory in `root`, in the order of the directories'
// names: `root` may be a checkpoint, a model or a folder of both, as for latest(). Changes nothing on disk. kNotFound
// if `root` is no directory. Leaves out directories in `root` that can't be read, and links to directories.
Result<std::vector<SaveInFlight>> saves_in_flight(const std::filesystem::path& root);

}  // namespace cairn

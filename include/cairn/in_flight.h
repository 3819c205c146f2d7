// Saves in flight: the saves that are under way in a directory or in the directories in it, and those that died there.
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

// A process that writes for a save, as its lease names it.
struct SaveInFlightWriter {
  // kUnknown: another host or container, of whose processes nobody can tell here: the heartbeat says more.
  enum class State : std::uint8_t { kAlive, kDead, kUnknown };

  std::optional<std::uint32_t> rank;  // none: the coordinator, or the only rank
  std::string host;                   // empty if the lease can't be read
  std::int64_t pid = 0;
  State state = State::kUnknown;
  double seconds_since_sign = 0;  // since its last heartbeat, which comes every few seconds
  bool is_readable = true;        // false: the lease can't be read, or is not complete; then nothing else is known

  // As of the last heartbeat. Nullopt: the lease does not say how far the save is.
  std::optional<SaveProgress> progress;
  // The call into the storage that had lasted longest, "writing '__0_0.distcp'", and how long. This time is what the
  // deadlines of a save are for. Empty and 0 if no call was under way.
  std::string pending_call;
  double seconds_without_progress = 0;
};

struct SaveInFlight {
  // What it has come to, as its writers have told each other.
  enum class Verdict : std::uint8_t { kNone, kCommitted, kFailed };

  SaveId save_id;
  SaveId job_id;                            // zero if the lease can't be read, as is the number
  std::uint64_t save_number = 0;            // counts the saves of a job
  std::vector<SaveInFlightWriter> writers;  // the coordinator first
  std::vector<Error> failures;              // of ranks that have failed; each has its rank
  Verdict verdict = Verdict::kNone;
  bool is_leftover = false;  // nobody works on it any more: the next save removes it
  // False if its folder may be entered by another user only: then nothing but the save id is known.
  bool is_readable = true;
  std::filesystem::path directory;  // of the checkpoint: `root`, or a directory in it
};

// The saves in `root` itself by number, then those in each directory in `root`, in the order of the directories' names:
// `root` may be a checkpoint or a folder of checkpoints, as for latest(). Nothing is changed. kNotFound if there is no
// such directory. A directory in `root` that can't be read is left out, and so is a link to a directory in `root`.
Result<std::vector<SaveInFlight>> saves_in_flight(const std::filesystem::path& root);

}  // namespace cairn

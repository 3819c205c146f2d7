// latest: the newest checkpoint to resume from, also right after a crash, while a writer may still be writing.
// checkpoints, saves_in_flight: all checkpoints, and all saves that have not ended, below a root. clean: removes the
// files of dead saves.
#pragma once

#include <cairn/catalog.h>
#include <cairn/options.h>
#include <cairn/result.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace cairn {

class Collectives;  // cairn/collectives.h

struct LatestOptions {
  // The longest wait for saves in flight: a writer that outlived its trainer may be about to commit.
  std::chrono::milliseconds wait{0};
  // Also counts checkpoints that this rank saved alone (`__{rank}.metadata`).
  std::optional<std::uint32_t> rank = {};
  // Called often during the wait, and before each check of a checkpoint; after a first true the result is kCancelled.
  std::function<bool()> interrupted = {};
  // Called on the calling thread, before latest() returns, for each damaged checkpoint that may be newer than the
  // result; with kNotFound for each symbolic link to nothing that may have led to a newer checkpoint, and if `root`
  // does not exist. The error names the directory.
  std::function<void(const Error&)> passed_over = {};
  // Set: all ranks call together, rank 0 looks, and every rank has its answer. Excludes `rank`. Outlives the call.
  Collectives* collectives = nullptr;
};

// Returns the directory with the newest checkpoint, among `root` itself and the directories in `root`. Nullopt if no
// directory holds a checkpoint, or if `root` does not exist. kInvalidArgument if `root` is not a directory,
// kUnavailable if `root` can't be listed. kUnavailable too if the system refuses access to a directory, or to a file of
// a checkpoint, that may be newer than the result, or if such an access times out: the result would then be an older
// checkpoint, although the newest may be whole. The error names the directory.
//
// Without access the order of a directory is unknown, and so is the order of a link to nothing. Such a directory or
// link may be newer than the result, unless its time is earlier than the time of the result's `.metadata` and its name
// has no greater step. The time is that of the closed `.metadata`, else of the directory or link.
//
// The step in a directory's name is the number after the last "step" or "steps" that is no fraction, and else the last
// number without Lightning's version: 1200 of `epoch=3-step=1200-v1.ckpt`, of `checkpoint-1200` and of `1200-v1.ckpt`.
//
// Cairn's checkpoints are ordered by their commit records: by the start of the job, then by the number of the save
// within the job, then by the step in the directory's name. Times of files do not count: saves may overlap, and
// `cp` and `touch` change times. A job that has opened a checkpoint starts after the checkpoint's job: the order
// does not depend on the clocks of hosts. Checkpoints without a start (stock torch, Cairn before version 2 of
// the commit record) are ordered by the time of `.metadata`, then by the step in the directory's name. Of the
// newest of both kinds, the one with the later time of `.metadata` is returned. The time of a link is the link's own.
//
// A copy by convert() never ranks before the saves of its source's run. A copy of a DCP checkpoint with all its keys
// and values comes right after the original, whose start and number the copy has. Any other copy, and a copy of a
// checkpoint without a start, comes after all other checkpoints; such copies are ordered by the time of `.metadata`.
//
// A damaged checkpoint does not count. A checkpoint of Cairn is whole if `.metadata` has the checksums of its commit
// record, and if all data files of the record are present with the recorded sizes; the bytes of the data files are not
// read (as verify() reads them). A checkpoint of stock torch has no commit record: the pickle must be readable, and
// each data file must reach to the end of its last item. Checkpoints are checked from the newest on, up to the first
// that is whole. Later saves of this process are ordered after every checkpoint that this call has read.
//
// If no directory holds a DCP checkpoint, not even an unusable one, the result is the directory with the newest
// safetensors model that Cairn has saved, in the order of saves. A model counts only if it can be opened: all files are
// there, and belong to one save. Models of other programs do not count: `root` may also hold the model that a training
// began with.
Result<std::optional<std::filesystem::path>> latest(const std::filesystem::path& root,
                                                    const LatestOptions& options = {});

// A checkpoint, or a safetensors model that Cairn has saved, below a root.
struct ListedCheckpoint {
  enum class State : std::uint8_t {
    kComplete,    // as latest() demands of its result
    kIncomplete,  // a data file is missing, or has a wrong size
    kUnreadable,  // the metadata or the model is damaged, or can't be read
  };

  std::filesystem::path directory;
  std::optional<std::uint64_t> step;  // in the directory's name, as for latest()
  CheckpointFormat format = CheckpointFormat::kDcp;
  State state = State::kComplete;
  std::optional<Error> reason = {};  // unless kComplete
  bool is_newest = false;            // the result of latest()
  // The time of the metadata by the clock of the storage, in seconds since 1970; nullopt for a model and if unknown.
  std::optional<double> modified_at = {};
};

struct ListingOptions {
  std::optional<std::uint32_t> rank = {};  // as in LatestOptions
  std::function<bool()> interrupted = {};  // as in LatestOptions
};

// All checkpoints among `root` itself and the directories in `root`, in the order of latest(), the newest first; then
// the models that Cairn has saved, in the same order. A checkpoint whose commit record can't be read has its place by
// the time of `.metadata`. Checks each as latest() checks its result. No checkpoint is newest if latest() would fail.
// kNotFound if `root` does not exist; otherwise fails as latest() fails for `root`. Directories without metadata are no
// checkpoints; saves_in_flight() lists the interrupted saves.
Result<std::vector<ListedCheckpoint>> checkpoints(const std::filesystem::path& root,
                                                  const ListingOptions& options = {});

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
  // Of the checkpoint: `root`, or a directory in `root`, which may be missing if the save is of torch_checkpointing.
  std::filesystem::path directory;
};

// Saves in flight, and dead saves, of DCP checkpoints, of safetensors models, and of directories of
// torch_checkpointing.
//
// The saves in `root` itself by number, then the saves in each directory in `root`, in the order of the directories'
// names: `root` may be a checkpoint, a model or a folder of both, as for latest(). Last the saves of
// torch_checkpointing whose directories are not in place yet, by name. Changes nothing on disk. kNotFound if `root` is
// no directory, and no save makes it. Leaves out directories in `root` that can't be read, and links to directories.
Result<std::vector<SaveInFlight>> saves_in_flight(const std::filesystem::path& root);

struct CleanedFile {
  std::string name;  // relative to the directory of the save
  std::uint64_t bytes = 0;
};

struct CleanedSave {
  // `root`, or a directory in `root`; of a save of torch_checkpointing the hidden directory `.cairn-new-<save
  // id>-<name>`, which goes too.
  std::filesystem::path directory;
  SaveId save_id;
  std::vector<CleanedFile> files;
  std::uint64_t bytes = 0;  // of `files`
};

struct CleanReport {
  std::vector<CleanedSave> saves;
  std::uint64_t bytes = 0;  // of all saves
  // Directories that this user may not enter, and saves that only a different user may read, all of which were left;
  // each text names directory and save.
  std::vector<std::string> warnings;
  // Why a dead save, or a file of it, could not be removed. Each error names its directory.
  std::vector<Error> problems;
};

struct CleanOptions {
  bool dry_run = false;                    // changes nothing; the report says what a call without it would remove
  std::function<bool()> interrupted = {};  // called before each directory; true: kCancelled
};

// Removes the dead saves in `root` and in the directories in `root`: saves of checkpoints, of models, and of
// directories of torch_checkpointing, whose new directories are in `root`, or beside `root` if `root` is the
// checkpoint. A save is dead if each of its processes has died, or, on another host, has given no sign of life for five
// minutes: the rule by which a save cleans its own directory. Never removes a file that a checkpoint or a model needs,
// a file of a living save, a committed checkpoint, or a foreign file outside of the dead save's private folder and new
// directory, which are Cairn's own. A save that had committed before it died is completed: the files of the checkpoint
// that it replaced go. Does not follow links in `root`. Safe beside running saves: the commits of a directory with dead
// saves wait meanwhile. kNotFound if `root` is missing, kInvalidArgument if it is no directory.
Result<CleanReport> clean(const std::filesystem::path& root, const CleanOptions& options = {});

}  // namespace cairn

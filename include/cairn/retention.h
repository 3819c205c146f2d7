// prune: removes the checkpoints of a run that a rule does not keep. remove_checkpoint: removes a single checkpoint.
// pin, unpin: protect a checkpoint from both.
//
// A removal has two stages. A rename takes the checkpoint out of its directory: from then on no reader finds it, and no
// crash brings it back. Then the files go. prune() finishes a removal that a crash has interrupted.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace cairn {

// Which checkpoints a run keeps: each that any part of the rule keeps. A rule without a part is refused
// (kInvalidArgument): it would keep nothing but the newest.
struct RetentionRule {
  struct Best {
    enum class Order : std::uint8_t { kMin, kMax };  // whether the smallest or the largest value is best
    std::string metric;
    Order order = Order::kMin;
    std::uint64_t count = 1;
  };

  std::optional<std::uint64_t> last = {};         // the newest so many that are good, in the order of latest()
  std::optional<std::uint64_t> every_steps = {};  // each whose step is a multiple
  // From the oldest on, each that is at least so much later than the one kept before it.
  std::optional<std::chrono::seconds> every_seconds = {};
  std::vector<Best> best = {};                          // by the metrics of the checkpoints; of equal values the newer
  std::optional<std::chrono::seconds> newer_than = {};  // each that is at most so old, by the clock of this host
};

struct PruneOptions {
  RetentionRule rule = {};
  // Also removes the checkpoints that no save of Cairn has written in place: those of stock torch, and copies by
  // convert().
  bool adopt = false;
  bool dry_run = false;  // changes nothing; the report says what a call without it would remove
  std::vector<std::filesystem::path> protect = {};  // directories whose checkpoints are kept, by any path
  std::function<bool()> interrupted = {};           // called before each removal; true: kCancelled
};

struct RemovedCheckpoint {
  std::filesystem::path directory;
  std::optional<std::uint64_t> step;  // in the directory's name, as for latest()
  std::optional<SaveId> save_id;      // nullopt for a checkpoint of stock torch
  std::uint64_t files = 0;
  std::uint64_t bytes = 0;                 // of the files
  bool was_interrupted = false;            // the rest of a removal that had been interrupted
  bool keeps_directory = false;            // files of others are, or in a dry run would be, in the directory
  std::vector<std::string> warnings = {};  // files that could not be removed
};

struct KeptCheckpoint {
  std::filesystem::path directory;
  std::optional<std::uint64_t> step;
  std::string
      reason;  // "newest", "last 3", "pinned", "of stock torch", "damaged and newer than the newest good one"...
};

struct PruneReport {
  std::vector<RemovedCheckpoint> removed;  // the oldest first
  std::vector<KeptCheckpoint> kept;        // in the order of latest()
  std::uint64_t bytes = 0;                 // of all removed files
  std::vector<Error> problems;             // why a checkpoint could not be removed; each error names its directory
};

// Removes the checkpoints in the directories in `root` that `options.rule` does not keep. A checkpoint is good if it is
// whole as latest() demands, and if the trailer of each data file has the recorded checksum.
//
// Always kept: the newest good checkpoint, and all that are newer; without a good checkpoint, all. Pinned checkpoints.
// Checkpoints behind symbolic links, a checkpoint in `root` itself, safetensors models, checkpoints that a rank saved
// alone, and checkpoints whose metadata can't be read. A checkpoint whose directory a save is about to overwrite: the
// checkpoint is reported as kept, and is no problem. A checkpoint without a step in the name of its directory, which is
// neither the newest good one nor one of the `last`: a run does not resume from it. A damaged checkpoint does not count
// among the `last` and the `best`.
//
// Before anything is removed, the commit of the newest good checkpoint is made durable: the process that committed it
// may have died before its sync. The bytes of a checkpoint that was saved with Durability::kBuffered may still be lost
// in a power cut: such a checkpoint is no reason to remove another.
//
// Removes only files that the removed checkpoint names and that its save has written, and directories that are empty
// afterwards. Several processes may call at a time, also while others save, load and pin: a load of a removed
// checkpoint ends with an error, or with the values of the checkpoint, never with others. kNotFound if `root` is
// missing.
Result<PruneReport> prune(const std::filesystem::path& root, const PruneOptions& options);

struct RemoveOptions {
  bool dry_run = false;
};

// Removes the checkpoint in `directory`, even the only one. Without a checkpoint, finishes a removal that a crash has
// interrupted; kNotFound without either. kInvalidArgument if the checkpoint is pinned, kUnavailable if a save into the
// directory is under way.
Result<RemovedCheckpoint> remove_checkpoint(const std::filesystem::path& directory, const RemoveOptions& options = {});

// Protects the checkpoint in `directory`, and each that replaces it there, from prune() and remove_checkpoint(). A pin
// is the file `.cairn-pinned`, durable when the call returns. `note` is for people: who needs the checkpoint, and why.
// Pinning again keeps the first note. kNotFound without a checkpoint.
Result<void> pin(const std::filesystem::path& directory, const std::string& note = {});
// Returns whether there was a pin.
Result<bool> unpin(const std::filesystem::path& directory);
// The note of the pin; nullopt without a pin.
Result<std::optional<std::string>> read_pin(const std::filesystem::path& directory);

}  // namespace cairn

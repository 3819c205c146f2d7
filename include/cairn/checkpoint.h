// save, load, open: a checkpoint in one directory, of one process or of many ranks together.
//
// Thread-safe: calls share nothing but the directory, and saves into one directory are safe against each other. Nothing
// here prints, exits, or touches signals.
//
// Many ranks: each calls with its own state and its own Collectives, in the same order. What fails on one rank fails on
// all, with the error of each failed rank in causes(); nobody waits for a rank that has given up. If the collectives
// themselves fail (a rank was killed), the error is theirs (kUnavailable).
#pragma once

#include <cairn/catalog.h>
#include <cairn/durability.h>
#include <cairn/result.h>
#include <cairn/save_deadlines.h>
#include <cairn/state_dict.h>
#include <cairn/verify_level.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace cairn {

class Collectives;  // cairn/collectives.h

struct SaveOptions {
  // --- changes what is stored or promised
  Durability durability = Durability::kDurable;
  bool overwrite = true;       // false: an existing checkpoint is an error (kInvalidArgument) instead of being replaced
  bool file_per_item = false;  // one data file per item instead of one per rank
  bool record_paths = true;    // false: no nested places in `.metadata`, as DCP does for an unflattened state dict
  // Where several ranks have the same item, the lowest writes it; otherwise they share it out by bytes.
  bool dedup_to_lowest_rank = false;
  // The state is that of one rank and nobody else's, equal keys of different ranks included: files
  // `__{rank}_{n}.distcp` and a metadata file of its own, `__{rank}.metadata`. Not with collectives.
  std::optional<std::uint32_t> alone_as_rank = {};
  std::string checkpoint_id = {};  // what `.metadata` records as the checkpoint's id; empty: the directory
  // --- when it fails
  // A save whose storage hangs fails with kUnavailable, and never becomes the checkpoint later. Its state is not read
  // any more when save() has returned, although the thread that hangs is left alone, with at most 4 MiB for each of
  // `thread_count`. Only if the rename of the commit itself hangs the outcome is unknown: the error says so.
  SaveDeadlines deadlines = {};
  // --- changes only speed
  std::size_t thread_count = 4;  // writers with a request in flight each
  bool direct_io = true;         // go past the page cache where the file system can
  // Asked every few milliseconds on the calling thread, also after it has returned true. True stops the save, which
  // fails with kCancelled and leaves what was there before. From then on a sync that does not return is waited for 30
  // seconds, and any other call into the storage two seconds. If it throws, the save is given up at once.
  std::function<bool()> interrupted = {};
  // --- what else is to happen
  // Called on the coordinator's calling thread when every rank has written its files, before the commit. Its error
  // becomes that of the save, which leaves what was there before.
  std::function<Result<void>()> before_commit = {};
  // --- who takes part
  Collectives* collectives = nullptr;  // null: this process alone. Outlives the call
  std::size_t coordinator_rank = 0;    // who plans and commits; the same on every rank
};

struct SaveReport {
  SaveId save_id;
  std::shared_ptr<const Catalog> catalog;  // what `.metadata` now says
  std::uint64_t bytes_written = 0;         // by this rank
  std::vector<std::string> warnings;       // for example: leftovers that could not be removed
};

// Saves `state` as the checkpoint in `directory`, which is made if need be. Until the last step the old checkpoint
// stays in place, whole; files of others in the directory are never touched. kSuperseded: another job committed there
// meanwhile.
//
// Many ranks save one state together: chunks of a tensor must make it up whole (kInvalidArgument), and what several
// have is written once. Ranks disagree at their own risk about durability, which each sees to for its files.
Result<SaveReport> save(const std::filesystem::path& directory, const StateDict& state,
                        const SaveOptions& options = {});

// For a rank that could not even make its state: takes its part in a save of all ranks with `reason` instead, so that
// the others fail too and do not wait. Returns the error that all get.
Error abandon_save(const Error& reason, const SaveOptions& options);

struct LoadOptions {
  // --- changes what is accepted
  Verify verify = Verify::kNeeded;
  bool allow_partial = false;  // keys that the checkpoint lacks keep what they have
  bool allow_cast = false;     // any change of dtype; without it only float to float
  bool follow_links = false;   // data files may be symbolic links
  // --- changes only speed
  std::size_t thread_count = 4;
  bool direct_io = true;                   // what is not in the page cache is read past it
  std::function<bool()> interrupted = {};  // as in SaveOptions; targets are then partly written
  // --- who takes part: all ranks load from one checkpoint, or none does
  Collectives* collectives = nullptr;  // null: this process alone. Outlives the call
  bool own_checkpoint = false;         // each rank loads what it saved alone: they need not look at the same one
};

// A float-to-float conversion, or an allowed cast, that a load did.
struct Conversion {
  std::string fqn;
  DType saved;
  DType target;
};

struct LoadReport {
  std::vector<Conversion> conversions;
  std::vector<std::string> missing;  // keys left alone (allow_partial)
  std::uint64_t bytes_needed = 0;    // of tensor data
  std::uint64_t bytes_read = 0;
};

// Fills `state` in place: tensors through their pointers, values by replacing them; a SerializedValue or
// SerializedTensor entry is replaced by the payload as stored. All that the metadata can tell (missing keys, shapes,
// dtypes, coverage, missing or short files) is checked before the first byte of a target changes; a checksum that fails
// later is an error that names key, file and offset, and the targets are then partly written. So is a file that an
// overwrite removed meanwhile, if there are more than a quarter of the descriptors that the process may have: `load`
// then starts again with the new checkpoint.
//
// Many ranks: all of them fill their states from one checkpoint; a mixture of two never comes out, even if a save
// replaces it meanwhile. If one finds in its metadata what it can't take, no target on any rank changes.
Result<LoadReport> load(const std::filesystem::path& directory, StateDict& state, const LoadOptions& options = {});

// For a rank that could not even say what it wants: takes its part in a load of all ranks with `reason` instead.
// Returns the error that all get.
Error abandon_load(const Error& reason, const LoadOptions& options);

// For work that each rank does on its own: tells the other ranks how it went on this one. Fails on every rank if it
// went wrong on one. Of `options` only `collectives` counts; without them this rank is alone.
Result<void> agree(const Result<void>& mine, const LoadOptions& options);

// A checkpoint opened for looking and reading. Movable; reads are thread-safe.
class Checkpoint {
 public:
  const Catalog& catalog() const noexcept;
  // Save id of the commit record; nullopt if stock torch wrote the checkpoint.
  std::optional<SaveId> save_id() const noexcept;
  // The size of one of catalog().files. Nothing outside the directory is looked at: kUnsafe for a link, and for a name
  // that leaves the directory.
  Result<std::uint64_t> file_bytes(std::string_view file) const;

  // Reads the elements of `box` of tensor `fqn` into `target`, whose sizes are the box's.
  Result<void> read(std::string_view fqn, const Box& box, const TensorView& target,
                    const LoadOptions& options = {}) const;
  // The bytes of a non-tensor as stored (usually a torch.save archive), or of a tensor's only chunk.
  Result<std::string> read_payload(std::string_view fqn, const LoadOptions& options = {}) const;
  // A non-tensor, decoded without running anything: what is not plain comes back as Object.
  Result<Value> read_value(std::string_view fqn, const LoadOptions& options = {}) const;
  // As the free function, from this checkpoint. kReplaced if files are gone because a save has taken its place, or if
  // other ranks look at another one: open it again.
  Result<LoadReport> load(StateDict& state, const LoadOptions& options = {}) const;

  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  struct Impl;  // the library's own
  explicit Checkpoint(std::unique_ptr<Impl> impl);
  Impl& impl() const noexcept { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

// `metadata_name`: ".metadata", or "__0.metadata" for what a rank saved alone.
Result<Checkpoint> open(const std::filesystem::path& directory, const std::string& metadata_name = ".metadata");

// How decode_value() gives the tensors of a value.
enum class TensorForm : std::uint8_t {
  kElements,     // an Array: row-major, of its own memory
  kDescription,  // an Object: the call of torch._utils that the pickle names, with its storage as an Object of the
                 // class torch.storage._load_storage whose argument is the storage's persistent id. No element is read.
};

// The native encoding of a plain value as a torch.save archive, readable by torch.load; and back. Encoding an Object
// fails with kUnsupported.
Result<std::string> encode_value(const Value& value);
Result<Value> decode_value(std::span<const std::byte> archive, TensorForm tensors = TensorForm::kElements);

}  // namespace cairn

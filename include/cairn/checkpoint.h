// save, load, open: a checkpoint in a directory, by a single process or by many ranks together.
//
// Thread-safe: calls share only the directory, and saves into a directory are safe against each other. No function
// prints, exits, or touches signals.
//
// Many ranks: each rank calls with its own state and its own Collectives, and all ranks make their calls in the same
// order. A call that fails on a rank fails on all ranks, with the error of each failed rank in causes(). No rank waits
// for a rank that has given up. If the collectives fail (a rank was killed), the call returns the error of the
// collectives (kUnavailable).
#pragma once

#include <cairn/catalog.h>
#include <cairn/durability.h>
#include <cairn/metadata_name.h>
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
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace cairn {

class Collectives;  // cairn/collectives.h

// A save as a safetensors model, in place of a DCP checkpoint: the files of torch's HuggingFaceStorageWriter. The state
// must hold only tensors of types that safetensors has (kInvalidArgument or kUnsupported, with the key, before anything
// is written).
struct SafetensorsForm {
  // By key the number of the key's file, from 1 on; the names state the largest number. Empty: one file.
  std::vector<std::pair<std::string, std::uint32_t>> file_numbers = {};
  // true: each rank writes its own chunks, and the chunks' places stand in the files' headers. There is no index, and
  // therefore no moment at which the files replace an older model: an existing model is an error (kInvalidArgument),
  // unless `for_consolidation`. false: each file is written by one rank, which must hold all of the file's tensors
  // whole (else kInvalidArgument), and the rename of `model.safetensors.index.json` commits the model.
  bool sharded = false;
  // Of shards: the directory holds the input of consolidate() (cairn/consolidate.h), which commits the model of another
  // directory. The shards replace earlier files; while they do, the directory has no whole model.
  bool for_consolidation = false;
};

struct SaveOptions {
  // --- options that change the stored bytes or the promises
  Durability durability = Durability::kDurable;
  bool overwrite = true;       // false: an existing checkpoint is an error (kInvalidArgument) and is not replaced
  bool file_per_item = false;  // one data file per item instead of one per rank
  bool record_paths = true;    // false: no nested places in `.metadata`, as DCP does for an unflattened state dict
  // true: the lowest of the ranks with an item writes the item. false: items of several ranks are distributed over the
  // ranks by bytes.
  bool dedup_to_lowest_rank = false;
  // The state belongs to this rank alone, and equal keys of different ranks stay apart: the save writes files
  // `__{rank}_{n}.distcp` and the rank's own metadata file `__{rank}.metadata`. Excludes collectives.
  std::optional<std::uint32_t> alone_as_rank = {};
  std::string checkpoint_id = {};  // the checkpoint's id in `.metadata`; empty: the directory
  // The pickle of a Metadata object whose extra attributes (Catalog::extra) go into `.metadata`; empty: none. Only
  // the coordinator's option counts. kCorrupt and kUnsupported if the engine cannot read or write an attribute. A model
  // ignores the option.
  std::string metadata_attributes = {};
  // Set: the save writes a model. Excludes alone_as_rank; file_per_item and checkpoint_id have no effect.
  std::optional<SafetensorsForm> safetensors = {};
  // --- when the save fails
  // If the storage hangs, the save fails with kUnavailable and never becomes the checkpoint later. After save() has
  // returned, no thread reads the state. The hanging thread keeps at most 4 MiB for each of `thread_count`. Only if the
  // rename of the commit itself hangs, the outcome is unknown, and the error says so.
  SaveDeadlines deadlines = {};
  // --- options that change only speed
  std::size_t thread_count = 6;  // writing threads, each with a request in flight
  bool direct_io = true;         // writes past the page cache if the file system supports direct I/O
  // Called every few milliseconds on the calling thread, also after a first true. True stops the save: the save fails
  // with kCancelled, and the old checkpoint stays in place. From then on save() waits at most 30 seconds for a sync,
  // and at most two seconds for any other call into the storage. If `interrupted` throws, the save is given up at
  // once.
  std::function<bool()> interrupted = {};
  // --- a step of the caller's
  // Called on the coordinator's calling thread when every rank has written its files, before the commit. An error of
  // `before_commit` becomes the error of the save, and the old checkpoint stays in place.
  std::function<Result<void>()> before_commit = {};
  // --- ranks
  Collectives* collectives = nullptr;  // null: this process alone. Outlives the call
  std::size_t coordinator_rank = 0;    // the rank that plans and commits; equal on every rank, or all ranks fail
};

struct SaveReport {
  SaveId save_id;
  // The content of the new `.metadata`. Null if the pickle is larger than 1 MiB, unless this rank has laid out all
  // files of the save: a process alone, and the coordinator of a new plan with many items that several ranks have.
  // open() reads the content, and Checkpoint::save_id() tells whether a later save has replaced the checkpoint.
  std::shared_ptr<const Catalog> catalog;
  std::uint64_t bytes_written = 0;    // by this rank
  std::vector<std::string> warnings;  // leftovers that can't be removed, only a part of a tensor saved by one process
};

// Saves `state` as the checkpoint in `directory`. Makes the directory if `directory` does not exist. Until the commit
// the old checkpoint stays in place, whole. Foreign files in the directory are never touched. kSuperseded: a second job
// committed into the directory meanwhile.
//
// Many ranks save a common state: the chunks of a tensor must cover the tensor (kInvalidArgument), and an item of
// several ranks is written once. `durability` should be equal on all ranks: each rank applies its own value to its own
// files.
Result<SaveReport> save(const std::filesystem::path& directory, const StateDict& state,
                        const SaveOptions& options = {});

// For a rank that has failed before save(): takes part in the save of all ranks with `reason` in place of a state. All
// ranks then fail, and no rank waits. Returns the error of all ranks.
Error abandon_save(const Error& reason, const SaveOptions& options);

// A stored chunk that only a framework can read (of a tensor subclass, a quantised tensor), for a target of a load.
struct ArchivedChunk {
  std::size_t entry = 0;  // the index of the target in the state
  Box chunk;              // the elements in the archive
  Box wanted;             // the elements of the chunk that the target needs
  std::string payload;    // a torch.save archive
};

struct LoadOptions {
  // --- options that change which checkpoints are accepted
  Verify verify = Verify::kNeeded;
  bool allow_partial = false;  // a key that the checkpoint lacks keeps its content
  bool allow_cast = false;     // any change of dtype; false: only float to float
  bool follow_links = false;   // data files may be symbolic links
  // Called on the calling thread, before the first byte of a target changes, with each archived chunk that a tensor of
  // the state needs: the caller fills the wanted elements after the load. An error fails the load. Unset: a load that
  // needs an archived chunk fails with kUnsupported.
  std::function<Result<void>(ArchivedChunk)> take_archive = {};
  // --- options that change only speed
  std::size_t thread_count = 6;  // reading threads, each with a request in flight
  // Reads bytes outside the page cache past the page cache. Bytes that several ranks of one host need go through the
  // page cache, and leave the page cache after the load. False: all bytes go through the page cache, and stay.
  bool direct_io = true;
  std::function<bool()> interrupted = {};  // as in SaveOptions; targets are then partly written
  // --- ranks: all ranks load from a common checkpoint, or no rank loads
  Collectives* collectives = nullptr;  // null: this process alone. Outlives the call
  // Bytes that ranks of several hosts need are read by one rank, and sent to the others by
  // Collectives::broadcast_in_place. For storage that is slower than the network. Not with `own_checkpoint`.
  bool broadcast_replicas = false;
  bool own_checkpoint = false;  // each rank loads its own save (alone_as_rank): the checkpoints may differ
};

// A float-to-float conversion, or an allowed cast, of a load.
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
  std::vector<std::string> warnings;  // as Checkpoint::damage()
};

// Fills `state` in place. Tensors are filled through their pointers, and values are replaced. In a SerializedValue or
// SerializedTensor entry the stored payload replaces the payload. Before the first byte of a target changes, the load
// checks keys, shapes, dtypes, coverage, and the presence and size of the files. A checksum that fails later is an
// error with key, file and offset, and the targets are then partly written. A load keeps at most a quarter of the
// process's descriptors open. If a load needs more files, an overwrite may remove a closed file meanwhile: the load,
// with targets partly written, then starts again with the new checkpoint.
//
// Many ranks: all ranks fill their states from a common checkpoint, never from a mixture of two checkpoints, even if a
// save replaces the checkpoint meanwhile. If a rank can't load by its metadata, no target changes on any rank.
Result<LoadReport> load(const std::filesystem::path& directory, StateDict& state, const LoadOptions& options = {});

// For a rank that has failed before load(): takes part in the load of all ranks with `reason` in place of a state.
// Returns the error of all ranks.
Error abandon_load(const Error& reason, const LoadOptions& options);

// For work of each rank on its own: exchanges the results of all ranks. Fails on every rank if `mine` is an error on
// any rank. Of `options` only `collectives` counts; without collectives this rank is alone.
Result<void> agree(const Result<void>& mine, const LoadOptions& options);

// The entry of a key of a checkpoint.
using KeyEntry = std::variant<CatalogTensor, CatalogValue>;

// An open checkpoint, for inspection and reads. Movable; reads are thread-safe.
class Checkpoint {
 public:
  // Of a checkpoint from open_to_load() or open_to_inspect(), the first call decodes the whole metadata: throws Error
  // if the metadata cannot be read or decoded. Never throws for a checkpoint from open().
  const Catalog& catalog() const;
  // Save id of the commit record; nullopt if stock torch wrote the checkpoint.
  std::optional<SaveId> save_id() const noexcept;
  // The calls up to outline() decode no more of the metadata of a checkpoint from open_to_load() or open_to_inspect()
  // than their answer needs. If this part of the compact catalog is damaged, the whole metadata takes its place, and
  // damage() says so.
  //
  CheckpointFormat format() const noexcept;
  // Whether items went through stream transforms (Catalog::transforms), and whether a key has one of these names.
  bool has_transforms() const noexcept;
  Result<bool> holds_any(std::span<const std::string> fqns) const;
  std::uint64_t key_count() const noexcept;
  // The data files, the indices of ItemLocation::file: catalog().files.
  const std::vector<std::string>& files() const noexcept;
  // The entry of a key, a tensor with all chunks; nullopt if the checkpoint lacks the key.
  Result<std::optional<KeyEntry>> entry(std::string_view fqn) const;
  // The catalog of at most the first `keys_max` keys, without chunks, without the places of values, and without
  // `paths`, `transforms` and `extra`; indexed. Of a compact catalog also without version, checkpoint_id and save_id.
  // To see the keys one after the other, in little memory: KeyStream (key_stream.h).
  Result<Catalog> outline(std::uint64_t keys_max = UINT64_MAX) const;
  // The damage of a part that the checkpoint can do without: of the compact catalog in `.metadata` (docs/format.md),
  // whose content the pickle has too. Nullopt if no damage was noticed so far.
  std::optional<std::string> damage() const;
  // The size of a file in catalog().files. Never opens a file outside the directory: kUnsafe for a link, and for a name
  // that leaves the directory. Links to the files of a safetensors model are followed.
  Result<std::uint64_t> file_bytes(std::string_view file) const;

  // Reads the elements of `box` of tensor `fqn` into `target`, whose sizes are the box's.
  Result<void> read(std::string_view fqn, const Box& box, const TensorView& target,
                    const LoadOptions& options = {}) const;
  // The stored bytes of a non-tensor (usually a torch.save archive), or of the only chunk of a tensor.
  Result<std::string> read_payload(std::string_view fqn, const LoadOptions& options = {}) const;
  // The stored bytes of chunk number `chunk` of a tensor. Not for a torch.save file, whose tensors have no items.
  Result<std::string> read_chunk_payload(std::string_view fqn, std::size_t chunk,
                                         const LoadOptions& options = {}) const;
  // A non-tensor, decoded without running code: a value that is not plain comes back as Object.
  Result<Value> read_value(std::string_view fqn, const LoadOptions& options = {}) const;
  // As the free function, from this checkpoint. kReplaced if a save has replaced this checkpoint and removed its files,
  // or if the ranks have opened different checkpoints: open the directory again.
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

// `directory` is the directory of a DCP checkpoint, a directory with the safetensors files of a model, the path of a
// safetensors file (`*.safetensors`), or the path of a file of torch.save with any other name: a zip archive, or the
// legacy format before torch 1.6, recognised by content. A directory with `.metadata` is a DCP checkpoint, whatever
// else the directory holds. Of safetensors files `model.safetensors.index.json` names the files; without the index, all
// files of the directory make up the model. Links to safetensors files are followed. A directory with a trace of a DCP
// checkpoint (a data file, a metadata file of any name, the private folder of a save) is never taken for a model.
// Safetensors files have no save id: a model that is replaced during a load by a model with equal names, sizes and
// headers is not noticed.
//
// A torch.save file must hold a dict (kUnsupported otherwise). Its keys are those of DCP's flattening of the dict, and
// tensors of a shared storage share their location. Opening checks the pickle's CRC, and runs nothing from the file: a
// value of an unknown class is listed, and comes back as an Object. A legacy file has no checksums. `metadata_name`:
// as from metadata_name() (metadata_name.h), or "model.safetensors.index.json" for the safetensors model of the
// directory, whatever else the directory holds.
Result<Checkpoint> open(const std::filesystem::path& directory,
                        const std::string& metadata_name = std::string(kMetadataName));

// As open(), for a load of some of the keys. If `.metadata` has a compact catalog (docs/format.md), only its directory
// is read; load() and the reads of the checkpoint then decode the entries of their keys. Damage of the remaining
// metadata is found by the call that meets it. All other checkpoints are opened as by open().
Result<Checkpoint> open_to_load(const std::filesystem::path& directory,
                                const std::string& metadata_name = std::string(kMetadataName));

// As open_to_load(), for a look at some of the keys: a later save of this process does not go on with the plan of the
// checkpoint.
Result<Checkpoint> open_to_inspect(const std::filesystem::path& directory,
                                   const std::string& metadata_name = std::string(kMetadataName));

// The restart policy of reads: the pause before the next restart, after `restarts` restarts of a read that failed with
// kReplaced. Nullopt: the read is not restarted any more. load() follows the policy. The pauses grow, because a network
// file system may show old metadata for a while.
std::optional<std::chrono::milliseconds> pause_before_restart(unsigned restarts);

// The form of tensors inside a value from decode_value().
enum class TensorForm : std::uint8_t {
  kElements,     // an Array: row-major, in memory of its own
  kDescription,  // an Object: the call of torch._utils in the pickle. The storage is an Object of the class
                 // torch.storage._load_storage with the storage's persistent id as argument. No element is read.
};

// encode_value() encodes a plain value as a torch.save archive for torch.load; decode_value() is the inverse. Encoding
// an Object fails with kUnsupported.
Result<std::string> encode_value(const Value& value);
Result<Value> decode_value(std::span<const std::byte> archive, TensorForm tensors = TensorForm::kElements);

}  // namespace cairn

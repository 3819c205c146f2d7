// open, load, read_value: a checkpoint in a directory, read by a single process or by many ranks together.
//
// Thread-safe: calls share only the directory. No function prints, exits, or touches signals. Calls of many ranks:
// cairn/collectives.h.
#pragma once

#include <cairn/catalog.h>
#include <cairn/options.h>
#include <cairn/result.h>
#include <cairn/state_dict.h>
#include <cairn/tensor.h>

#include <chrono>
#include <concepts>
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
  // New names for the keys of the checkpoint, as in ConvertOptions: the state has the new names. The first rename that
  // matches a key counts. kMissingKey if a rename applies to no key; kInvalidArgument if two keys get the same name.
  // Errors about a single tensor name its key in the checkpoint.
  std::vector<KeyRename> renames = {};
  // Called on the calling thread, before the first byte of a target changes, with each archived chunk that a tensor of
  // the state needs: the caller fills the wanted elements after the load. An error fails the load. Unset: a load that
  // needs an archived chunk fails with kUnsupported.
  std::function<Result<void>(ArchivedChunk)> take_archive = {};
  bool silent = false;  // without events (cairn/events.h) and progress: a part of another load
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

// For a program that calls open_to_load() and Checkpoint::load(), and has failed before the latter: makes the events
// kBegun and kFailed of a load (cairn/events.h). Of `options` only `collectives` counts, for the rank; calls none.
void tell_failed_load(const std::filesystem::path& directory, const Error& reason, const LoadOptions& options);

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
  // To see the keys one after the other, in little memory: KeyStream.
  Result<Catalog> outline(std::uint64_t keys_max = UINT64_MAX) const;
  // All keys by their names after `renames`, as LoadOptions::renames: the new name of a key, and the key.
  Result<std::vector<std::pair<std::string, std::string>>> renamed_keys(std::span<const KeyRename> renames) const;
  // The damage of a part that the checkpoint can do without: of the compact catalog in `.metadata` (docs/format.md),
  // whose content the pickle has too. Nullopt if no damage was noticed so far.
  std::optional<std::string> damage() const;
  // The JSON object that the caller of the save has given (SaveOptions::notes), byte for byte; empty if none. Reads
  // nothing but `.metadata`. kCorrupt if the notes are damaged: the checkpoint can be loaded nevertheless if
  // `.metadata` has a compact catalog.
  Result<std::string> notes() const;
  // The member "metrics" of the notes: names and finite numbers, in the order of the text.
  Result<std::vector<std::pair<std::string, double>>> metrics() const;
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
// as from metadata_name(), or "model.safetensors.index.json" for the safetensors model of the
// directory, whatever else the directory holds.
//
// A directory of Meta's torch_checkpointing is opened too, unless the directory also holds a DCP checkpoint
// (docs/format.md, section 11). Keys whose parts can't be put together are values that a read refuses (kUnsupported).
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

// A key without chunks and places.
struct KeySummary {
  std::string fqn;
  bool is_tensor = false;
  DType dtype = DType::kFloat32;  // of a tensor
  Extents shape = {};             // of a tensor
  bool requires_grad = false;     // of a tensor
};

// The keys of an open checkpoint, in the order of the metadata, some at a time.
//
// One thread at a time; the checkpoint outlives the stream. Of a checkpoint from open_to_inspect() whose `.metadata`
// has a compact catalog, the stream decodes a block of the catalog at a time, and no chunks: memory does not grow with
// the number of keys.
class KeyStream {
 public:
  explicit KeyStream(const Checkpoint& checkpoint) : checkpoint_(&checkpoint) {}

  // The next keys, valid until the next call; empty after the last key. From the first damaged block of the compact
  // catalog on, the keys come from the whole metadata, and Checkpoint::damage() says so.
  Result<std::span<const KeySummary>> next();

 private:
  Result<void> read_block();
  Result<void> take_from(const Catalog& catalog);

  const Checkpoint* checkpoint_;
  std::vector<KeySummary> batch_;
  std::size_t block_ = 0;     // of the compact catalog: the next
  std::uint64_t given_ = 0;   // keys so far
  bool reads_whole_ = false;  // the compact catalog is damaged
};

// A type that a Value can hold: bool, std::int64_t, double, std::string, Bytes, List, Dict...; or Value.
template <typename T>
concept ValueType = std::same_as<T, Value> || requires(const Value& value) {
  { value.get_if<T>() } -> std::same_as<const T*>;
};

// A value of a checkpoint in one call:
//
//     const std::int64_t step = cairn::read_value<std::int64_t>("checkpoints/step-1000", "step").value();
//
// Thread-safe, and for a process alone. The value under `fqn` in the checkpoint in `directory`; directory and errors as
// in open() and Checkpoint::read_value(). A value of another type than T is kInvalidArgument, with the key; but a
// double may be an integer in the checkpoint. T = Value takes every value.
template <ValueType T = Value>
Result<T> read_value(const std::filesystem::path& directory, std::string_view fqn, const LoadOptions& options = {}) {
  CAIRN_TRY_ASSIGN(const Checkpoint checkpoint, open_to_inspect(directory));
  CAIRN_TRY_ASSIGN(Value value, checkpoint.read_value(fqn, options));
  if constexpr (std::same_as<T, Value>) {
    return value;
  } else {
    if (const T* const found = std::as_const(value).template get_if<T>()) return *found;
    if constexpr (std::same_as<T, double>) {
      if (const auto* const whole = std::as_const(value).template get_if<std::int64_t>()) {
        return static_cast<double>(*whole);
      }
    }
    return Error(ErrorCode::kInvalidArgument, "the value has another type than the caller asked for")
        .key(fqn)
        .actual(to_string(value));
  }
}

}  // namespace cairn

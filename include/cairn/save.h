// save: saves a state as a checkpoint in a directory, by a single process or by many ranks together. SaveClaim,
// RankShare: the steps of a save as separate calls. consolidate: makes whole tensors of the shards of a model.
//
// Thread-safe, except for the two classes: saves into a directory are safe against each other. No function prints,
// exits, or touches signals. Calls of many ranks: cairn/collectives.h.
#pragma once

#include <cairn/catalog.h>
#include <cairn/options.h>
#include <cairn/result.h>
#include <cairn/state_dict.h>
#include <cairn/tensor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
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
  // Of shards: the directory holds the input of consolidate(), which commits the model of another directory. The shards
  // replace earlier files; while they do, the directory has no whole model.
  bool for_consolidation = false;
};

struct SaveOptions {
  // --- options that change the stored bytes or the promises
  Durability durability = Durability::kDurable;
  bool overwrite = true;  // false: an existing checkpoint is an error (kInvalidArgument) and is not replaced
  // false: a checkpoint with a pin (cairn/retention.h) is an error (kUnavailable) and is not replaced. A pin is of
  // `.metadata`: saves of a rank alone and of models ignore the option.
  bool overwrite_pinned = true;
  // Into an object store that ignores the conditions of writes (If-None-Match, If-Match): the caller promises that no
  // other job and no second copy of this job writes into the directory; docs/durability.md says what is lost. false:
  // such a store is an error (kUnsupported). Without effect on any other storage.
  bool single_writer = false;
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
  // A JSON object of at most 64 KiB of UTF-8, stored in `.metadata` and committed with it: Checkpoint::notes(). A
  // member "metrics" maps names to finite numbers, as in {"metrics": {"loss": 0.1}}; all other members are the
  // caller's. Empty: none. Every rank's text is checked (kInvalidArgument), and the coordinator's is stored. A rank
  // that saves alone stores its own. A model has no place for notes: kUnsupported.
  std::string notes = {};
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
  // `before_commit` becomes the error of the save, and the old checkpoint stays in place. Of save() only.
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

// Writes a safetensors model of whole tensors from a model, or from the shards that many ranks have saved.
//
// Reads the model in `input` and saves its tensors as the model in `output`, a different directory, in the files that
// `options.safetensors->file_numbers` names (one file if empty), with an index. Streams: memory for a few buffers of
// 4 MiB. Checks every byte that has a checksum. The old model in `output` stays in place until the new model is whole.
//
// With `options.collectives` each rank writes some of the files. Of `options`, consolidate() uses safetensors,
// overwrite, durability, deadlines, thread_count, direct_io, interrupted, collectives and coordinator_rank.
//
// kInvalidArgument if a tensor has no file number, or if `input` is `output`; kMissingKey if a tensor of the mapping is
// not in the model.
Result<SaveReport> consolidate(const std::filesystem::path& input, const std::filesystem::path& output,
                               const SaveOptions& options);

// A published data file of a rank.
struct PublishedFile {
  std::string name;         // within the checkpoint's directory
  std::uint64_t bytes = 0;  // its size
  std::uint32_t trailer_checksum = 0;
};

// A box of a tensor that a rank of a save of a model holds.
struct HeldBox {
  std::string fqn;
  DType dtype = DType::kFloat32;
  Extents shape;  // of the whole tensor
  Box box;
};

// The boxes that a rank of a save of a model writes.
struct ModelShare {
  std::string ticket;                // for RankShare::write_model()
  std::vector<std::uint32_t> boxes;  // indices of the rank's HeldBoxes, in the order in which the rank writes the boxes
};

// The name of the file of each box that a rank has written.
struct PublishedBox {
  std::string fqn;
  std::string file;
  std::uint64_t bytes = 0;
};

// The steps of a save as separate calls, for callers with their own coordination of the ranks: plug-ins of a framework,
// MPI programs. A caller with Collectives calls save() instead.
//
// 1. The coordinator, a rank chosen by the caller, claims the directory and gives every rank the claim's ticket.
// 2. Every rank writes its share under the ticket and sends the coordinator the share's files and places.
// 3. The coordinator commits with a rename over `.metadata`, as save() does.
//
// A safetensors model is saved by the same steps (make_model(), write_model(), commit_model()). The coordinator needs
// the tensors of all ranks already in step 1, because the header of each file has the number of the model's files.
//
// A failure before the rename leaves the old checkpoint unchanged. A claim that is destroyed uncommitted withdraws all
// files of the save in the directory: every rank must have finished step 2 by then.
//
// A call into the storage that hangs fails its step within SaveOptions::deadlines, as in save(). A destructor waits for
// a hanging call as after an interruption: at most 30 seconds for a sync, and two seconds for any other call. A
// thread in the background withdraws the remaining files when the call returns.
//
// In a child made by fork, the steps of both classes fail with kUnavailable, and the destructors do nothing.
//
// Movable; one thread at a time.
class SaveClaim {
 public:
  // Step 1. Makes the directory if `directory` does not exist. Of `options`, make() uses overwrite (kInvalidArgument),
  // alone_as_rank, notes and interrupted; make() and commit() use durability and deadlines.
  static Result<SaveClaim> make(const std::filesystem::path& directory, const SaveOptions& options = {});

  // Step 1 of a model, with the form of `options.safetensors` (required). `held` has the boxes of each rank. Each box
  // is written once; with shards by the lowest rank that holds the box, otherwise by the rank that writes the box's
  // file. Fails as cairn::save() of a model.
  static Result<SaveClaim> make_model(const std::filesystem::path& directory,
                                      const std::vector<std::vector<HeldBox>>& held, const SaveOptions& options);

  // Bytes for RankShare::write() on the ranks of this save. All ranks need an equal version of Cairn. Of a claim of
  // make_model(), the bytes only identify the save.
  std::string ticket() const;
  SaveId save_id() const;
  // By rank. Empty unless make_model() made the claim.
  const std::vector<ModelShare>& model_shares() const;

  // Step 3. `metadata` is DCP's pickled Metadata, with items at the places returned by the ranks; `files` has the files
  // of all ranks. kInvalidArgument if Cairn can't read `metadata` back, or if `metadata` names files outside `files`.
  // A failed commit withdraws the files, unless may_have_committed(), or unless the storage hangs. At most one call per
  // claim. `interrupted` is as in SaveOptions, but only ends the wait for a storage that hangs.
  Result<SaveReport> commit(std::string_view metadata, const std::vector<PublishedFile>& files,
                            const std::function<bool()>& interrupted = {});
  // Step 3 of a model: `boxes` has the boxes of all ranks. kInvalidArgument if they are not the boxes of the shares, in
  // the files of the shares. Otherwise as commit(). The report lacks the catalog.
  Result<SaveReport> commit_model(const std::vector<PublishedBox>& boxes,
                                  const std::function<bool()>& interrupted = {});
  // Whether the rename was done, or has an unknown outcome: then no rank may withdraw a file.
  bool may_have_committed() const;
  // In place of the commit: as the destructor, with an interruptible wait.
  void withdraw(const std::function<bool()>& interrupted = {});

  SaveClaim(SaveClaim&&) noexcept;
  SaveClaim& operator=(SaveClaim&&) noexcept;
  ~SaveClaim();

  struct Impl;  // the library's own
  explicit SaveClaim(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

// The files of a rank. Until hand_over(), the destructor withdraws the files.
class RankShare {
 public:
  // Step 2. Writes all of `state` into files with final names, synced if durable. `rank` is the number of this rank in
  // the save. Of `options`, write() uses durability, file_per_item, deadlines, interrupted, and the options that change
  // only speed. If the ticket's claim is gone, write() may fail with kNotFound, or because a rank of a later save has
  // a file under the name. kCorrupt if `ticket` is no ticket.
  static Result<RankShare> write(const std::filesystem::path& directory, std::string_view ticket, std::uint32_t rank,
                                 const StateDict& state, const SaveOptions& options = {});
  // Step 2 of a model, with the ticket of a ModelShare. `state` has a chunk for each box of the share, in the same
  // order; the dtypes may differ from those of step 1. kInvalidArgument if the number of entries differs.
  static Result<RankShare> write_model(const std::filesystem::path& directory, std::string_view ticket,
                                       std::uint32_t rank, const StateDict& state, const SaveOptions& options = {});

  const std::vector<PublishedFile>& files() const;
  // The place of each entry of the state, in the order of the entries; `file` is an index into files().
  const std::vector<ItemLocation>& places() const;

  // The coordinator has received the list of files: from now on the coordinator commits or withdraws the files. A rank
  // that loses contact with the coordinator must not withdraw the files, which may belong to the new checkpoint.
  void hand_over();
  // For a save that has failed on the coordinator without may_have_committed().
  void withdraw(const std::function<bool()>& interrupted = {});

  RankShare(RankShare&&) noexcept;
  RankShare& operator=(RankShare&&) noexcept;
  ~RankShare();

  struct Impl;  // the library's own
  explicit RankShare(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn

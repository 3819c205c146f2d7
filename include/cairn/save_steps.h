// SaveClaim, RankShare: the steps of a save as separate calls, for callers with their own coordination of the ranks:
// plug-ins of a framework, MPI programs. A caller with Collectives calls save() (cairn/checkpoint.h) instead.
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
#pragma once

#include <cairn/catalog.h>
#include <cairn/checkpoint.h>
#include <cairn/result.h>
#include <cairn/state_dict.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {

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

class SaveClaim {
 public:
  // Step 1. Makes the directory if `directory` does not exist. Of `options`, make() uses overwrite (kInvalidArgument),
  // alone_as_rank and interrupted; make() and commit() use durability and deadlines.
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

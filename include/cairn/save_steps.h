// SaveClaim, RankShare: the steps of a save, one by one, for callers who coordinate their ranks by means of their own:
// plug-ins of another framework, MPI programs. Whoever has Collectives calls save() (cairn/checkpoint.h) instead.
//
// 1. One rank, the coordinator, claims the directory and gives every rank the claim's ticket.
// 2. Every rank writes its share under that ticket and sends the coordinator what came of it: files and places.
// 3. The coordinator commits: one rename over `.metadata`, as save() does it.
//
// Whatever fails before the rename leaves the old checkpoint as it was. A claim that is destroyed uncommitted withdraws
// the files of all ranks that the directory shows: so every rank must be done with step 2 by then.
//
// A call into the storage that hangs fails its step within SaveOptions::deadlines, as in save(). A destructor waits for
// such a call as after an interruption: 30 seconds for a sync, two for any other. What is then left to withdraw is
// withdrawn by a thread in the background when the call returns.
//
// In a child made by fork both are of no use: steps fail with kUnavailable, and the destructors do nothing.
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

// A data file that a rank has published.
struct PublishedFile {
  std::string name;         // within the checkpoint's directory
  std::uint64_t bytes = 0;  // its size
  std::uint32_t trailer_checksum = 0;
};

class SaveClaim {
 public:
  // Step 1. Makes the directory if need be. Of `options` count overwrite (kInvalidArgument), alone_as_rank,
  // interrupted, and, for the commit too, durability and deadlines.
  static Result<SaveClaim> make(const std::filesystem::path& directory, const SaveOptions& options = {});

  // Bytes for the ranks of this save. They mean something to the same version of Cairn only.
  std::string ticket() const;
  SaveId save_id() const;

  // Step 3. `metadata` is DCP's pickled Metadata, which names items by the places that the ranks gave; `files` are
  // those of all ranks. kInvalidArgument if Cairn could not read that metadata back, or if it names other files.
  // After a failure the files have been withdrawn, unless may_have_committed(), or unless the storage hangs. Call it
  // once. `interrupted` is as in SaveOptions, but it only ends the waiting for a storage that hangs.
  Result<SaveReport> commit(std::string_view metadata, const std::vector<PublishedFile>& files,
                            const std::function<bool()>& interrupted = {});
  // Whether the rename has been done, or nobody knows: then no rank may withdraw anything.
  bool may_have_committed() const;
  // In place of the commit: as the destructor, but it can be interrupted.
  void withdraw(const std::function<bool()>& interrupted = {});

  SaveClaim(SaveClaim&&) noexcept;
  SaveClaim& operator=(SaveClaim&&) noexcept;
  ~SaveClaim();

  struct Impl;  // the library's own
  explicit SaveClaim(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

// What one rank wrote. Until hand_over(), its destruction withdraws the files.
class RankShare {
 public:
  // Step 2. Writes all of `state` under final names, synced if durable. `rank` tells the ranks of the save apart. Of
  // `options` count durability, file_per_item, deadlines, interrupted, and those that change only speed. kNotFound, or
  // a file that another rank has written, may come of a ticket whose claim is gone; kCorrupt if the ticket is none.
  static Result<RankShare> write(const std::filesystem::path& directory, std::string_view ticket, std::uint32_t rank,
                                 const StateDict& state, const SaveOptions& options = {});

  const std::vector<PublishedFile>& files() const;
  // Where each entry of the state lies, in their order; `file` counts in files().
  const std::vector<ItemLocation>& places() const;

  // The coordinator knows of the files: from now on it decides what becomes of them. A rank that merely does not hear
  // from it any more must not withdraw them: they may be the checkpoint.
  void hand_over();
  // The coordinator said that the save has failed, and that it may not have committed.
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

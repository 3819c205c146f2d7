// RankSave: one rank's part of an asynchronous save, from the claim to the end. The ranks' writers meet in the storage:
// nothing is sent between them, so the programs that staged the bytes may all be dead. The steps stand at the top of
// rank_save.cc.
//
// One thread at a time, but for progress(). Destroyed before it has ended, it gives up as abandon() does.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "commit/save_coordinator.h"
#include "commit/save_member.h"
#include "commit/save_ticket.h"
#include "commit/save_transaction.h"
#include "data_file/image_writer.h"
#include "storage/storage.h"

namespace cairn::commit {

class RankSave {
 public:
  using Operations = SaveMember::Operations;
  // Step 1, by the coordinator, whose number is `rank`: before anything is planned. The storage is taken over.
  static Result<std::unique_ptr<RankSave>> claim(std::unique_ptr<storage::Storage> storage,
                                                 const SaveIdentity& identity, std::uint32_t rank,
                                                 const ClaimOptions& options = {}, Operations operations = {});
  // The others come in with the ticket that the coordinator gave them.
  static std::unique_ptr<RankSave> join(std::unique_ptr<storage::Storage> storage, const SaveTicket& ticket,
                                        Operations operations = {});
  ~RankSave();
  RankSave(const RankSave&) = delete;
  RankSave& operator=(const RankSave&) = delete;

  const SaveTicket& ticket() const;
  // From any thread.
  ProgressReport progress() const;

  // Step 2: takes its place, before its bytes are staged: the others can tell from now on whether it lives. Called
  // again, it does nothing.
  Result<void> enter(const RankPlace& place);

  // Steps 3 to 7, once the bytes are staged: writes `files` (private names are made here: `name` is the final one), and
  // returns when the checkpoint is committed and, if durable, synced; or why it is not. `commit_request` is the
  // coordinator's. `may_commit` is asked right before the commit and returns when no earlier save into this directory
  // is under way, or why that will never be. Any failure is told to the other ranks; theirs come as Error::of_ranks().
  // kSuperseded as in save_transaction.h.
  Result<RankSaveReport> finish(std::vector<data_file::ImageFile> files,
                                const std::optional<CommitRequest>& commit_request, const RankSaveOptions& options,
                                const std::function<Result<void>()>& may_commit = {});

  // In place of finish(): this rank has no bytes. The others fail with the reason, the coordinator withdraws; to let
  // the others hear, it may wait for as long as twenty seconds.
  void abandon(const Error& reason);

 private:
  struct Impl;
  explicit RankSave(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::commit

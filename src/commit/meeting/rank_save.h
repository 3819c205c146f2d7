// RankSave: the part of a rank in an asynchronous save, from the claim to the end. The ranks' writers meet in the
// storage and send no messages: all programs that staged the bytes may be dead by then. The steps are at the top of
// rank_save.cc.
//
// One thread at a time, except progress(). The destructor of an unfinished save gives the save up as abandon() does.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "commit/meeting/save_coordinator.h"
#include "commit/meeting/save_member.h"
#include "commit/metadata_commit.h"
#include "commit/save_ticket.h"
#include "commit/save_transaction.h"
#include "data_file/image_writer.h"
#include "storage/storage.h"

namespace cairn::commit {

struct EnterOptions {
  // Whether finish() will get files. A rank without files passes the decisive step of `fence` here, before the lease.
  bool has_files = true;
  // Called before the step after which the save may be committed. Null: no other thread gives the save up. The fence
  // must outlive the save.
  SaveFence* fence = nullptr;
};

class RankSave {
 public:
  using Operations = SaveMember::Operations;
  // Step 1, by the coordinator, whose number is `rank`: before any planning. Takes ownership of the storage. The form
  // of the identity is kCheckpoint or kDirectory.
  static Result<std::unique_ptr<RankSave>> claim(std::unique_ptr<storage::Storage> storage,
                                                 const SaveIdentity& identity, std::uint32_t rank,
                                                 const ClaimOptions& options = {}, Operations operations = {});
  // The other ranks join with the coordinator's ticket.
  // `directory_name`: as in ClaimOptions.
  static std::unique_ptr<RankSave> join(std::unique_ptr<storage::Storage> storage, const SaveTicket& ticket,
                                        Operations operations = {}, std::string directory_name = {});
  ~RankSave();
  RankSave(const RankSave&) = delete;
  RankSave& operator=(const RankSave&) = delete;

  const SaveTicket& ticket() const;
  // May be called from any thread.
  ProgressReport progress() const;

  // Step 2: takes the rank's lease before the rank's bytes are staged. From now on the other ranks can tell whether
  // this rank lives. A second call has no effect.
  Result<void> enter(const RankPlace& place, const EnterOptions& options = {});

  // Steps 3 to 7, once the bytes are staged. Writes `files`: `name` is a file's final name, and finish() makes the
  // private names. Returns once the checkpoint is committed and, if durable, synced, or with the reason why not.
  // `commit_request` is given by the coordinator only. `may_commit` is called right before the commit; the function
  // returns once no earlier save into this directory is in flight, or fails if an earlier save will never end. A
  // failure of this rank is reported to the other ranks; failures of other ranks are returned as Error::of_ranks().
  // kSuperseded as in save_transaction.h.
  Result<RankSaveReport> finish(std::vector<data_file::ImageFile> files,
                                const std::optional<CommitRequest>& commit_request, const RankSaveOptions& options,
                                const std::function<Result<void>()>& may_commit = {});

  // Replaces finish() if this rank has no bytes. The other ranks fail with `reason`, and the coordinator withdraws
  // published files. May wait up to twenty seconds for the other ranks to read the decision.
  void abandon(const Error& reason);

  // Replaces enter() and finish() on a rank that does not coordinate and has failed before enter(). The remaining ranks
  // fail with `reason`. Takes no lease: the coordinator could take the lease for the agreement of a rank without files.
  void fail_before_entry(const RankPlace& place, const Error& reason);

 private:
  struct Impl;
  explicit RankSave(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::commit

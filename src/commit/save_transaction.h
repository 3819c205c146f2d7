// SaveTransaction: a save's way into a directory: claimed, written, published, committed by a single rename, cleaned
// up.
//
// The steps are at the top of save_transaction.cc. One thread at a time. Until commit() has renamed `.metadata`, the
// destructor withdraws everything that the transaction put into the directory. After the rename nothing is withdrawn.
#pragma once

#include <cairn/catalog.h>
#include <cairn/options.h>
#include <cairn/result.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "commit/lease.h"
#include "commit/metadata_in_place.h"
#include "commit/rank_files.h"
#include "commit/save_fence.h"
#include "format/manifest/commit_record.h"
#include "storage/storage.h"

namespace cairn::commit {

struct CommitReport {
  std::vector<std::string> warnings;  // leftovers that could not be removed
};

struct ClaimOptions {
  bool overwrite = true;
  // A rank that saves alone: the save commits `__{rank}.metadata`, and neither lists nor opens the files of other
  // ranks. `names_taken` must be set if the rank has more than one file.
  std::optional<std::uint32_t> alone_as_rank = {};
  bool names_taken = false;  // DCP's names are not free: for example another rank has files in its own directory
  // Whether a safetensors model may be in the directory. torch allows it: Cairn then opens the checkpoint, and programs
  // that read models open the model. false: a model is an error (kInvalidArgument).
  bool beside_a_model = true;
};

class SaveTransaction {
 public:
  // Step 1. `storage` must outlive the transaction; `progress` is for the transaction's lease. kInvalidArgument if a
  // checkpoint exists and `overwrite` is false.
  static Result<std::unique_ptr<SaveTransaction>> claim(storage::Storage& storage, const SaveIdentity& identity,
                                                        const ClaimOptions& options = {},
                                                        Lease::Progress progress = {});
  ~SaveTransaction();
  SaveTransaction(const SaveTransaction&) = delete;
  SaveTransaction& operator=(const SaveTransaction&) = delete;

  // The ranks' input to steps 2 and 3 (rank_files.h).
  SaveTicket ticket() const { return {identity_, fresh_}; }
  // The final names of all files that the ranks are going to publish: the files to withdraw if the save fails.
  // Withdrawing removes only files with this save's id in the name or in the trailer.
  void expect(std::vector<std::string> file_names) { expected_ = std::move(file_names); }
  // Replaces expect() if the names are unknown beforehand: withdrawing then searches the directory.
  void expect_any() { expects_any_ = true; }

  // The fence is called right before the rename that commits, and once the commit is synced. Null: no other thread
  // gives the save up. The fence must outlive the transaction.
  void set_fence(SaveFence* fence) { fence_ = fence; }

  // Keeps the folder beyond the commit, until remove_folder(): the decision is left in the folder (rank_save.cc).
  void keep_folder() { keeps_folder_ = true; }

  // Steps 4 to 7. Fills in the fields of `record` that the transaction knows: save, job, number, pickle.
  Result<CommitReport> commit(const std::string& pickle, manifest::CommitRecord record, Durability durability);
  // After commit(), when the ranks have read the decision. Adds a warning for each file that could not be removed.
  void remove_folder(std::vector<std::string>& warnings);
  // Whether the rename of step 5 has been done, or may have been done: from then on no file is withdrawn.
  bool may_have_committed() const { return committed_; }

 private:
  SaveTransaction(storage::Storage& storage, const SaveIdentity& identity, const ClaimOptions& options);
  Result<void> look_around();
  Result<void> look_as_rank(std::uint32_t rank);
  Result<void> check_overwrite(const MetadataInPlace& now) const;
  Result<void> check_not_superseded(const MetadataInPlace& now) const;
  Result<void> rename_and_confirm(Durability durability);
  void withdraw();
  void look_for_files();
  void leave_note();

  storage::Storage& storage_;
  SaveIdentity identity_;
  ClaimOptions options_;
  std::string metadata_name_;
  std::string folder_;
  std::optional<Lease> lease_;
  bool fresh_ = false;  // the directory held only unrelated files: DCP's names are free
  MetadataInPlace seen_;
  std::vector<std::string> expected_;
  bool expects_any_ = false;
  bool keeps_folder_ = false;
  SaveFence* fence_ = nullptr;
  bool committed_ = false;
};

}  // namespace cairn::commit

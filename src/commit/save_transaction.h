// SaveTransaction: one save's way into a directory: claimed, written, published, committed by one rename, cleaned up.
//
// The steps stand at the top of save_transaction.cc. One thread at a time. Until commit() has renamed `.metadata`,
// destroying the transaction withdraws everything that it put into the directory; afterwards nothing is withdrawn.
#pragma once

#include <cairn/durability.h>
#include <cairn/result.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "commit/lease.h"
#include "commit/rank_files.h"
#include "commit/save_fence.h"
#include "format/manifest/commit_record.h"
#include "storage/storage.h"

namespace cairn::commit {

inline constexpr std::string_view kMetadataName = ".metadata";
// `.metadata`; `__{rank}.metadata` for a rank that saves alone.
std::string metadata_name(std::optional<std::uint32_t> alone_as_rank);

// What `.metadata` was at some moment: enough to see whether it is still the same.
struct MetadataInPlace {
  bool present = false;
  std::optional<manifest::CommitRecord> record;  // null if stock torch wrote it, or if it is damaged
  // Only without a record, for then nothing else tells one `.metadata` from another.
  std::uint64_t size = 0;
  std::uint32_t checksum = 0;

  bool same_as(const MetadataInPlace& other) const;
};
// Reads the commit record alone if there is one: the pickle before it is not looked at. Without one the whole file is
// read, a piece at a time, for its checksum.
Result<MetadataInPlace> read_metadata_in_place(const storage::Storage& storage,
                                               const std::string& name = std::string(kMetadataName));

struct CommitReport {
  std::vector<std::string> warnings;  // leftovers that could not be removed
};

struct ClaimOptions {
  bool overwrite = true;
  // The save is that of one rank and nobody else's: it commits `__{rank}.metadata`, and the ranks beside it are none of
  // its business.
  std::optional<std::uint32_t> alone_as_rank = {};
  bool names_taken = false;  // DCP's names are not free: another rank has files in a directory of its own
};

class SaveTransaction {
 public:
  // Step 1. `storage` outlives the transaction; `progress` is for its lease. kInvalidArgument if a checkpoint is there
  // and `overwrite` is false.
  static Result<std::unique_ptr<SaveTransaction>> claim(storage::Storage& storage, const SaveIdentity& identity,
                                                        const ClaimOptions& options = {},
                                                        Lease::Progress progress = {});
  ~SaveTransaction();
  SaveTransaction(const SaveTransaction&) = delete;
  SaveTransaction& operator=(const SaveTransaction&) = delete;

  // What the ranks need for steps 2 and 3 (rank_files.h).
  SaveTicket ticket() const { return {identity_, fresh_}; }
  // The final names of all files that the ranks are going to publish: what to withdraw if the save fails. Only what is
  // recognised as this save's, by its name or its trailer, is ever withdrawn.
  void expect(std::vector<std::string> file_names) { expected_ = std::move(file_names); }
  // In place of expect(), where nobody knows the names beforehand: what the directory shows is looked through.
  void expect_any() { expects_any_ = true; }

  // Asked right before the rename that commits, and told when the commit is synced. Null: nobody gives the save up from
  // outside. It outlives the transaction.
  void set_fence(SaveFence* fence) { fence_ = fence; }

  // The folder outlives the commit, so that the decision can be left in it (rank_save.cc): until remove_folder().
  void keep_folder() { keeps_folder_ = true; }

  // Steps 4 to 7. `record` lacks what the transaction knows (save, job, number, pickle): it is filled in.
  Result<CommitReport> commit(const std::string& pickle, manifest::CommitRecord record, Durability durability);
  // After commit(): the ranks have heard. Adds what could not be removed, in words.
  void remove_folder(std::vector<std::string>& warnings);
  // Whether the rename of step 5 has been done, or nobody knows: then no file is withdrawn any more.
  bool may_have_committed() const { return committed_; }

 private:
  SaveTransaction(storage::Storage& storage, const SaveIdentity& identity, const ClaimOptions& options);
  Result<void> look_around();
  Result<void> check_overwrite(const MetadataInPlace& now) const;
  Result<void> check_not_superseded(const MetadataInPlace& now) const;
  Result<void> rename_and_confirm(Durability durability);
  void withdraw();
  void look_for_files();

  storage::Storage& storage_;
  SaveIdentity identity_;
  ClaimOptions options_;
  std::string metadata_name_;
  std::string folder_;
  std::optional<Lease> lease_;
  bool fresh_ = false;  // the directory held nothing but files of others: DCP's names are free
  MetadataInPlace seen_;
  std::vector<std::string> expected_;
  bool expects_any_ = false;
  bool keeps_folder_ = false;
  SaveFence* fence_ = nullptr;
  bool committed_ = false;
};

}  // namespace cairn::commit

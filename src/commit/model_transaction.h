// ModelTransaction: the way of a safetensors model into its directory: claimed, written, published, committed, cleaned
// up.
//
// The steps are at the top of model_transaction.cc. One thread at a time. Until commit() has begun its rename, the
// destructor withdraws everything that the transaction put into the directory. After the rename nothing is withdrawn.
#pragma once

#include <cairn/options.h>
#include <cairn/result.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "commit/lease.h"
#include "commit/model_files.h"
#include "commit/model_in_place.h"
#include "commit/save_fence.h"
#include "commit/save_ticket.h"
#include "commit/save_transaction.h"
#include "format/safetensors/index.h"
#include "storage/storage.h"

namespace cairn::commit {

struct ModelClaimOptions {
  // kAlone: one file, committed by its own rename. kIndexed: several files, committed by the rename of the index.
  // kShards: the files of many ranks, without an index.
  safetensors::FileSet::Kind kind = safetensors::FileSet::Kind::kIndexed;
  bool overwrite = true;  // false: an existing model is an error (kInvalidArgument)
  // Shards without an index have no commit point: while shards replace a model, a reader may find the files of both.
  // false: an existing model is then an error (kInvalidArgument). true only for the input of a consolidation, whose
  // output is the model.
  bool overwrite_with_shards = false;
  bool names_taken = false;  // torch's names are not free: another rank has files in its own directory
  // Of kAlone: the one file that the save writes or replaces; all other files stay. The name of a file of several is an
  // error (kInvalidArgument): of a DCP checkpoint, of a model with an index, or a name that model_file_name() returns.
  // So is `model.safetensors` beside a model of several files, from which programs would then choose differently.
  // Empty: the save replaces the model of the directory by `model.safetensors`.
  std::string file_name = {};
};

// The new model.
struct ModelContent {
  std::vector<std::string> files;  // final names
  safetensors::Index index;        // the file of each tensor; unused for kShards
  std::uint64_t tensor_bytes = 0;
};

class ModelTransaction {
 public:
  // Step 1. `identity.form` is kModel. `storage` must outlive the transaction; `progress` is for the transaction's
  // lease.
  static Result<std::unique_ptr<ModelTransaction>> claim(storage::Storage& storage, const SaveIdentity& identity,
                                                         const ModelClaimOptions& options = {},
                                                         Lease::Progress progress = {});
  ~ModelTransaction();
  ModelTransaction(const ModelTransaction&) = delete;
  ModelTransaction& operator=(const ModelTransaction&) = delete;

  // The ranks' input to steps 2 and 3 (model_file_name(), rank_files.h). Files of kAlone are not published: the file
  // waits under RankFiles::private_name(file_name) for the commit.
  SaveTicket ticket() const { return {identity_, fresh_}; }
  // The final names of all files that the ranks are going to publish: the files to withdraw if the save fails.
  void expect(std::vector<std::string> file_names) { expected_ = std::move(file_names); }
  // As in SaveTransaction.
  void set_fence(SaveFence* fence) { fence_ = fence; }

  // Steps 4 to 6. kSuperseded if the model in place has changed since the claim, except by earlier saves of this job.
  Result<CommitReport> commit(const ModelContent& content, Durability durability);
  // Whether the rename of step 5 has been done, or may have been done: from then on no file is withdrawn.
  bool may_have_committed() const { return committed_; }

 private:
  ModelTransaction(storage::Storage& storage, const SaveIdentity& identity, const ModelClaimOptions& options);
  Result<void> look_around();
  Result<ModelInPlace> look() const;
  Result<void> check_not_superseded(const ModelInPlace& now) const;
  Result<bool> has_changed_by_earlier_saves(const ModelInPlace& now) const;
  Result<void> check_overwrite(const ModelInPlace& now) const;
  Result<void> check_one_file(const ModelInPlace& now) const;
  Result<void> check_regular(const ModelInPlace& now) const;
  Result<void> write_index(const ModelContent& content, Durability durability);
  // Whether the replaced files were removed: if not, the folder must stay.
  Result<bool> commit_under_lock(const ModelContent& content, Durability durability, const storage::StorageLock* lock,
                                 CommitReport& report);
  Result<void> check_published(const ModelContent& content) const;
  Result<void> write_replaced(const ModelInPlace& old, const std::vector<StampedFile>& replaced, Durability durability);
  Result<void> make_visible(const ModelInPlace& old, const std::vector<StampedFile>& replaced, Durability durability);
  Result<void> mark_committed(const ModelInPlace& old, const std::vector<StampedFile>& replaced, Durability durability);
  Result<void> replace_file(const ModelInPlace& old, Durability durability);
  Result<void> rename_file();
  Result<void> rename_index();
  Result<void> remove_index(Durability durability);
  bool is_in_place() const;
  Result<void> sync(Durability durability);
  void withdraw();

  storage::Storage& storage_;
  SaveIdentity identity_;
  ModelClaimOptions options_;
  bool is_of_the_directory_;  // whether the save replaces the model of the directory, rather than one file
  std::string folder_;
  std::optional<Lease> lease_;
  bool fresh_ = false;  // the directory has no file of a model: torch's names are free
  ModelInPlace seen_;
  std::uint64_t index_size_ = 0;  // of the sealed index, as index_checksum_
  std::uint32_t index_checksum_ = 0;
  std::vector<std::string> expected_;
  SaveFence* fence_ = nullptr;
  bool committed_ = false;
  std::vector<std::string> warnings_;
};

}  // namespace cairn::commit

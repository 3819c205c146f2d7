// SaveTransaction: the way of a save into its directory: claimed, written, published, made visible, cleaned up.
//
// The steps are at the top of save_transaction.cc; a CommitStrategy takes those in which commits differ. One thread at
// a time. Until commit() has made the new checkpoint visible, the destructor withdraws everything that the transaction
// put into the directory. From then on nothing is withdrawn.
#pragma once

#include <cairn/options.h>
#include <cairn/result.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "commit/commit_content.h"
#include "commit/commit_strategy.h"
#include "commit/lease.h"
#include "commit/rank_files.h"
#include "commit/save_fence.h"
#include "format/manifest/commit_record.h"
#include "storage/storage.h"

namespace cairn::commit {

struct CommitReport {
  std::vector<std::string> warnings;  // leftovers that could not be removed
};

class SaveTransaction {
 public:
  // Step 1, for claim_checkpoint() and claim_model(). `progress` is for the transaction's lease.
  static Result<std::unique_ptr<SaveTransaction>> claim(std::unique_ptr<CommitStrategy> strategy,
                                                        Lease::Progress progress);
  ~SaveTransaction();
  SaveTransaction(const SaveTransaction&) = delete;
  SaveTransaction& operator=(const SaveTransaction&) = delete;

  // The ranks' input to steps 2 and 3 (rank_files.h).
  SaveTicket ticket() const { return {identity_, fresh_}; }
  // The final names of all files that the ranks are going to publish: the files to withdraw if the save fails.
  // Withdrawing removes only files with this save's id in the name, the trailer or the header.
  void expect(std::vector<std::string> file_names) {
    if (strategy_->publishes()) expected_ = std::move(file_names);
  }
  // Replaces expect() if the names are unknown beforehand: withdrawing then searches the directory. Of a checkpoint.
  void expect_any() { expects_any_ = true; }

  // The fence is called right before the commit point, and once the commit is synced. Null: no other thread gives the
  // save up. The fence must outlive the transaction.
  void set_fence(SaveFence* fence) { fence_ = fence; }

  // Keeps the folder beyond the commit, until remove_folder(): the decision is left in the folder (rank_save.cc).
  void keep_folder() { keeps_folder_ = true; }

  // Steps 4 to 7, of a DCP checkpoint or of a model. kSuperseded if what is in place has changed since the claim,
  // except by earlier saves of this job.
  Result<CommitReport> commit(const std::string& pickle, manifest::CommitRecord record, Durability durability) {
    return commit(content_of_checkpoint(identity_, pickle, std::move(record)), durability);
  }
  Result<CommitReport> commit(const ModelContent& content, Durability durability) {
    return commit(content_of_model(identity_, content), durability);
  }
  // After commit(), when the ranks have read the decision. Adds a warning for each file that could not be removed.
  void remove_folder(std::vector<std::string>& warnings);
  // Whether the commit point has been passed, or may have been passed: from then on no file is withdrawn.
  bool may_have_committed() const { return committed_; }

 private:
  explicit SaveTransaction(std::unique_ptr<CommitStrategy> strategy)
      : strategy_(std::move(strategy)),
        storage_(strategy_->storage()),
        identity_(strategy_->identity()),
        folder_(strategy_->folder()) {}
  Result<CommitReport> commit(const CommitContent& content, Durability durability);
  Result<void> seal(const CommitContent& content, Durability durability);
  // Whether the replaced files were removed: if not, the folder must stay.
  Result<bool> commit_under_lock(const CommitContent& content, Durability durability, const storage::StorageLock* lock);
  Result<void> make_visible(Durability durability);
  void withdraw();
  void look_for_files();

  std::unique_ptr<CommitStrategy> strategy_;
  storage::Storage& storage_;
  const SaveIdentity& identity_;
  const std::string& folder_;
  std::optional<Lease> lease_;
  bool fresh_ = false;  // the directory held only unrelated files: the names of a first save are free
  std::vector<std::string> expected_;
  bool expects_any_ = false;
  bool keeps_folder_ = false;
  SaveFence* fence_ = nullptr;
  bool committed_ = false;
  std::vector<std::string> warnings_;
};

}  // namespace cairn::commit

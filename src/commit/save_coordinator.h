// SaveCoordinator: what the coordinator's writer does in an asynchronous save beside its own files: steps 5 to 7 of
// rank_save.cc.
#pragma once

#include <cairn/result.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "commit/save_member.h"
#include "commit/save_transaction.h"
#include "format/manifest/outcome.h"

namespace cairn::commit {

// What the coordinator sees to beside its own files.
struct CommitRequest {
  std::string pickle;  // of `.metadata`
  // Names, by rank; all together, they are the catalog's files in order.
  std::vector<std::vector<std::string>> files;

  friend bool operator==(const CommitRequest&, const CommitRequest&) = default;
};

class SaveCoordinator {
 public:
  // `member` outlives it.
  SaveCoordinator(SaveMember& member, std::unique_ptr<SaveTransaction> transaction)
      : member_(member), transaction_(std::move(transaction)) {}

  // Steps 3 to 7.
  Result<RankSaveReport> lead(std::vector<data_file::ImageFile> images, const CommitRequest& commit_request,
                              const RankSaveOptions& options, const std::function<Result<void>()>& may_commit);
  // In place of lead(): the others hear the reason, and what they published is withdrawn.
  void give_up_all(const Error& reason);

 private:
  Result<CommitReport> write_meet_commit(std::vector<data_file::ImageFile> images, const CommitRequest& commit_request,
                                         const RankSaveOptions& options,
                                         const std::function<Result<void>()>& may_commit);
  Result<void> tell(const Decision& decision, const RankSaveOptions& options);

  SaveMember& member_;
  std::unique_ptr<SaveTransaction> transaction_;
};

}  // namespace cairn::commit

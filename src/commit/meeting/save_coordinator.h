// SaveCoordinator: the tasks of the coordinator's writer in an asynchronous save, beside writing files: steps 5 to 7 of
// rank_save.cc.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "commit/meeting/save_member.h"
#include "commit/save_transaction.h"
#include "format/manifest/outcome.h"
#include "format/manifest/recorded_plan.h"

namespace cairn::commit {

// What the coordinator commits: the metadata, and the files of all ranks.
struct CommitRequest {
  // Returns the pickle of `.metadata`; may take long. Called once, when the coordinator has written its files.
  std::function<Result<std::string>()> render;
  // Names, by rank. All names together, in order, are the catalog's files.
  std::vector<std::vector<std::string>> files;
  manifest::RecordedPlan plan;  // of several ranks
  // The sizes of `files`, of a save of a whole directory. Empty: the trailers of the files tell their sizes.
  std::vector<std::vector<std::uint64_t>> sizes = {};
};

class SaveCoordinator {
 public:
  // `member` must outlive the coordinator.
  SaveCoordinator(SaveMember& member, std::unique_ptr<SaveTransaction> transaction)
      : member_(member), transaction_(std::move(transaction)) {}

  // Steps 3 to 7.
  Result<RankSaveReport> lead(std::vector<data_file::ImageFile> images, const CommitRequest& commit_request,
                              const RankSaveOptions& options, const std::function<Result<void>()>& may_commit);
  // Replaces lead(): reports the reason to the other ranks, and withdraws the published files.
  void give_up_all(const Error& reason);

 private:
  Result<CommitReport> write_meet_commit(std::vector<data_file::ImageFile> images, const CommitRequest& commit_request,
                                         const RankSaveOptions& options,
                                         const std::function<Result<void>()>& may_commit);
  Result<void> tell(const Decision& decision, const RankSaveOptions& options);

  SaveMember& member_;
  std::unique_ptr<SaveTransaction> transaction_;
  std::uint64_t metadata_bytes_ = 0;
};

}  // namespace cairn::commit

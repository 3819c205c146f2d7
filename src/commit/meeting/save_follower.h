// SaveFollower: the tasks of the writer of every rank except the coordinator in an asynchronous save: steps 2 to 4 of
// rank_save.cc, and the wait for the decision.
#pragma once

#include <cairn/result.h>

#include <optional>
#include <vector>

#include "commit/lease.h"
#include "commit/meeting/decision_watch.h"
#include "commit/meeting/save_marks.h"
#include "commit/meeting/save_member.h"

namespace cairn::commit {

class SaveFollower {
 public:
  // `member` must outlive the follower.
  explicit SaveFollower(SaveMember& member) : member_(member) {}

  // Step 2. A rank without files agrees to the commit by its lease; kCancelled if the rank was given up before.
  Result<void> take_lease(bool has_files);
  // Steps 3, 4 and 7.
  Result<RankSaveReport> follow(std::vector<data_file::ImageFile> images, const RankSaveOptions& options);
  // Replaces follow(): reports the reason to the other ranks. No effect without a lease.
  void give_up(const Error& reason);

 private:
  Result<RankSaveReport> conclude(const Result<std::optional<Decision>>& decision, DecisionWatch& watch);
  void clean_up();
  void leave();

  SaveMember& member_;
  std::optional<Lease> lease_;
};

}  // namespace cairn::commit

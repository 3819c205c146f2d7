// SaveFollower: what the writer of any rank but the coordinator's does in an asynchronous save: steps 2 to 4 of
// rank_save.cc, and then it waits for the decision.
#pragma once

#include <cairn/result.h>

#include <optional>
#include <vector>

#include "commit/decision_watch.h"
#include "commit/lease.h"
#include "commit/save_marks.h"
#include "commit/save_member.h"

namespace cairn::commit {

class SaveFollower {
 public:
  // `member` outlives it.
  explicit SaveFollower(SaveMember& member) : member_(member) {}

  // Step 2.
  Result<void> take_lease();
  // Steps 3, 4 and 7.
  Result<RankSaveReport> follow(std::vector<data_file::ImageFile> images, const RankSaveOptions& options);
  // In place of follow(): the others hear the reason. Nothing if it has no lease.
  void give_up(const Error& reason);

 private:
  Result<RankSaveReport> conclude(const Result<std::optional<Decision>>& decision, DecisionWatch& watch);
  void leave();

  SaveMember& member_;
  std::optional<Lease> lease_;
};

}  // namespace cairn::commit

// DecisionWatch: how a rank of an asynchronous save learns the decision on the save: from the coordinator's mark, or,
// if the coordinator is dead, from the `.metadata` in place.
//
// Thousands of ranks wait for one decision: after six seconds of a wait, a rank makes at most two calls a second into
// the storage, however many ranks there are. A rank then looks for the marks when the coordinator's lease was touched;
// without a touch, every ten seconds. In a bucket a rank makes one request in two seconds at first, and in thirty
// seconds later: it reads the lease, which tells when there is a decision to read.
//
// One thread at a time. The numbers are the numbers of the steps at the top of rank_save.cc.
#pragma once

#include <cairn/options.h>
#include <cairn/result.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "commit/lease_watch.h"
#include "commit/meeting/periodic.h"
#include "commit/meeting/save_marks.h"
#include "commit/meeting/slowing_pace.h"
#include "storage/storage.h"

namespace cairn::commit {

class DecisionWatch {
 public:
  struct Save {
    SaveId id;
    std::uint32_t coordinator = 0;
    Durability durability = Durability::kDurable;
    std::string directory_name = {};  // of a save of a whole directory
  };
  // `storage` and `marks` must outlive the watch. The coordinator counts as lost if its lease shows no heartbeat, or no
  // progress, for longer than `deadlines` allow.
  DecisionWatch(storage::Storage& storage, SaveMarks& marks, const Save& save, const SaveDeadlines& deadlines);

  // Nullopt while the save is undecided, or while no look is due. An error if the outcome cannot be determined: the
  // save may be committed, now or later, or not.
  Result<std::optional<Decision>> look();
  // The rank has written its files, and waits: the looks are frequent again.
  void note_waiting() { pace_.restart(); }
  // A dead coordinator cannot remove the folder.
  bool coordinator_is_dead() { return lease_.look(deadlines_) == LeaseWatch::Liveness::kDead; }

 private:
  Result<bool> is_in_place() const;
  Decision committed() const;
  // A look at the whole folder, if its names do not tell enough.
  Result<std::optional<Decision>> look_at_folder();
  Result<std::optional<Decision>> conclude_from_death();
  // In a storage without a rename. The second closes the coordinator's lease: the outcome is then known, unless a write
  // of the metadata file may be under way.
  Result<std::optional<Decision>> look_in_bucket(LeaseWatch::Liveness liveness);
  Result<std::optional<Decision>> conclude_by_closing();
  Result<Decision> decision_of_closed(const std::optional<LeaseHolder>& holder) const;
  Result<std::optional<Decision>> conclude_without_folder() const;

  storage::Storage& storage_;
  SaveMarks& marks_;
  Save save_;
  SaveDeadlines deadlines_;
  LeaseWatch lease_;
  SlowingPace pace_;
  Periodic marks_look_;
  Periodic process_look_{kLivenessInterval};
};

}  // namespace cairn::commit

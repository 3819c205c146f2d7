// DecisionWatch: how a rank of an asynchronous save learns what became of it: from the coordinator's mark, or, if the
// coordinator is dead, from the `.metadata` in place.
//
// One thread at a time. The numbers are those of the steps at the top of rank_save.cc.
#pragma once

#include <cairn/durability.h>
#include <cairn/result.h>
#include <cairn/save_deadlines.h>

#include <chrono>
#include <cstdint>
#include <optional>

#include "commit/lease_watch.h"
#include "commit/save_marks.h"
#include "storage/storage.h"

namespace cairn::commit {

class DecisionWatch {
 public:
  struct Save {
    SaveId id;
    std::uint32_t coordinator = 0;
    Durability durability = Durability::kDurable;
  };
  // `storage` and `marks` outlive it. A coordinator that gives no sign of life, or gets nowhere, for longer than
  // `deadlines` allow is given up.
  DecisionWatch(storage::Storage& storage, SaveMarks& marks, const Save& save, const SaveDeadlines& deadlines);

  // Nullopt while nothing is decided. An error if nobody can tell: the save may be committed or not, then or later.
  Result<std::optional<Decision>> look();
  // If so, it can't remove the folder.
  bool coordinator_is_dead() { return lease_.look(deadlines_) == LeaseWatch::Liveness::kDead; }

 private:
  Result<bool> is_in_place() const;
  Decision committed() const;
  Result<std::optional<Decision>> conclude_from_death();
  Result<std::optional<Decision>> conclude_without_folder() const;

  using Clock = std::chrono::steady_clock;
  storage::Storage& storage_;
  SaveMarks& marks_;
  Save save_;
  SaveDeadlines deadlines_;
  LeaseWatch lease_;
  Clock::time_point next_listing_{};
  Clock::time_point next_liveness_{};
};

}  // namespace cairn::commit

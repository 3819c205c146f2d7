// ResumedPlan: the plan of a save, read from a checkpoint that this process has opened: a restarted job goes on with
// the plan of the checkpoint that it has loaded, and gathers no local plans. The steps stand at the top of
// resumed_plan.cc.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string_view>

#include "save/save_items.h"
#include "save/staged_plan.h"

namespace cairn::checkpointer {

struct ResumeTerms {
  std::string_view local_plan;  // of save_plan::encode_local_plan()
  std::string_view terms;       // of plan_terms()
  std::size_t rank = 0;
  std::size_t rank_count = 1;
  bool is_coordinator = false;
  bool file_per_item = false;
  std::string_view metadata_attributes;  // as in SaveOptions
  // The storage of the checkpoint may hang: without an answer within the limit, and within a minute, there is no plan,
  // and the checkpoint is no longer noted.
  std::chrono::milliseconds limit{0};
};

// This rank's part of a noted plan, not confirmed: all ranks confirm it together (plan_confirmation.h). Null if no
// noted checkpoint has the plan of `terms`, or if the checkpoint can no longer be read: it may have been removed or
// replaced since. `items` are those of `terms.local_plan`. The id of the plan follows from the checkpoint: equal on all
// ranks.
std::shared_ptr<const StagedPlan> resume_plan(SaveItems& items, const ResumeTerms& terms);

}  // namespace cairn::checkpointer

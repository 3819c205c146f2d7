// ProcessPlans: the plans of the process's synchronous saves by several ranks. A synchronous save has no object that
// outlives it, so the plans belong to the process. Thread-safe.
#pragma once

#include <memory>
#include <string_view>

#include "save/staged_plan.h"

namespace cairn::checkpointer {

// As StagedPlans::find() and keep().
std::shared_ptr<const StagedPlan> find_process_plan(std::string_view local_plan, std::string_view terms);
void keep_process_plan(std::shared_ptr<const StagedPlan> plan);

}  // namespace cairn::checkpointer

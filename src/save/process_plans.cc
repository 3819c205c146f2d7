#include "save/process_plans.h"

#include <utility>

#include "os/process_state.h"

namespace cairn::checkpointer {
namespace {

os::ProcessState<StagedPlans>& process_plans = os::ProcessState<StagedPlans>::instance();

}  // namespace

std::shared_ptr<const StagedPlan> find_process_plan(std::string_view local_plan, std::string_view terms) {
  return process_plans.use([&](StagedPlans& kept) { return kept.find(local_plan, terms); });
}

void keep_process_plan(std::shared_ptr<const StagedPlan> plan) {
  process_plans.use([&](StagedPlans& kept) { kept.keep(std::move(plan)); });
}

}  // namespace cairn::checkpointer

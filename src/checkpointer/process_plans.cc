#include "checkpointer/process_plans.h"

#include <mutex>
#include <utility>

namespace cairn::checkpointer {
namespace {

struct ProcessPlans {
  std::mutex mutex;
  StagedPlans plans;
};

ProcessPlans& process_plans() {
  static ProcessPlans plans;
  return plans;
}

}  // namespace

std::shared_ptr<const StagedPlan> find_process_plan(std::string_view local_plan, std::string_view terms) {
  ProcessPlans& kept = process_plans();
  const std::lock_guard lock(kept.mutex);
  return kept.plans.find(local_plan, terms);
}

void keep_process_plan(std::shared_ptr<const StagedPlan> plan) {
  ProcessPlans& kept = process_plans();
  const std::lock_guard lock(kept.mutex);
  kept.plans.keep(std::move(plan));
}

}  // namespace cairn::checkpointer

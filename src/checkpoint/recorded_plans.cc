#include "checkpoint/recorded_plans.h"

#include <cairn/bucket_url.h>

#include <cstddef>
#include <utility>

#include "os/process_state.h"

namespace cairn::checkpointer {
namespace {

// A job loads one checkpoint, or a few: a model, and an optimizer's state from elsewhere.
constexpr std::size_t kPlansKept = 4;

struct NotedPlans {
  std::vector<std::shared_ptr<const NotedPlan>> plans;  // most recently noted first

  void in_child() { plans.clear(); }  // a forked child is a new job, and has loaded nothing
};

os::ProcessState<NotedPlans>& process_plans = os::ProcessState<NotedPlans>::instance();

}  // namespace

void note_recorded_plan(const std::filesystem::path& directory, const std::string& metadata_name,
                        const manifest::CommitRecord& record) {
  if (record.plan.ranks.empty()) return;
  std::filesystem::path absolute = absolute_place(directory);
  if (!absolute.is_absolute() && !is_bucket_url(absolute)) return;
  auto noted = std::make_shared<const NotedPlan>(NotedPlan{std::move(absolute), metadata_name, record});
  process_plans.use([&](NotedPlans& all) {
    std::erase_if(all.plans, [&](const auto& it) { return it->record.save_id == record.save_id; });
    all.plans.insert(all.plans.begin(), std::move(noted));
    if (all.plans.size() > kPlansKept) all.plans.pop_back();
  });
}

std::vector<std::shared_ptr<const NotedPlan>> noted_plans() {
  return process_plans.use([](const NotedPlans& all) { return all.plans; });
}

void forget_noted_plan(const NotedPlan& plan) {
  process_plans.use(
      [&](NotedPlans& all) { std::erase_if(all.plans, [&](const auto& it) { return it.get() == &plan; }); });
}

}  // namespace cairn::checkpointer

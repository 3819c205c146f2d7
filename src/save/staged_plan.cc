#include "save/staged_plan.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "core/checked.h"
#include "os/page_buffer.h"
#include "os/process_identity.h"
#include "save/item_files.h"
#include "save_plan/local_plans.h"

namespace cairn::checkpointer {
namespace {

// A trainer saves one state, or a few states in turn (a model alone, a model with its optimizer).
constexpr std::size_t kPlansKept = 4;

}  // namespace

std::uint64_t next_layout_id() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1);
}

Result<void> lay_out_staged(std::span<const data_file::ItemSource> sources, const data_file::ImageIdentity& identity,
                            bool file_per_item, std::shared_ptr<const commit::CommitPlan> commit_plan,
                            StagedPlan& plan) {
  auto layout = std::make_shared<writer::StagedLayout>();
  layout->id = next_layout_id();
  layout->commit_plan = std::move(commit_plan);
  std::vector<AssignedItem> ordered;
  ordered.reserve(sources.size());
  plan.payload_offsets.reserve(sources.size());
  for (const ItemFile& file : item_files(sources, file_per_item)) {
    data_file::ImageIdentity file_identity = identity;
    file_identity.file_number = static_cast<std::uint32_t>(layout->files.size());
    CAIRN_TRY_ASSIGN(data_file::LaidOutFile laid_out, data_file::FileImage::lay_out(file_identity, file.sources));
    for (std::size_t i = 0; i < file.indices.size(); ++i) {
      ordered.push_back(std::move(plan.items[file.indices[i]]));
      plan.payload_offsets.push_back(layout->arena_bytes + laid_out.index.items[i].range.payload_offset);
    }
    layout->files.push_back({layout->arena_bytes, std::move(laid_out.index)});
    plan.file_bytes += laid_out.file_bytes;
    layout->arena_bytes += align_up(laid_out.file_bytes, os::kPageBytes);
  }
  plan.items = std::move(ordered);
  plan.layout = std::move(layout);
  return {};
}

std::uint64_t new_plan_id() { return confirmed_plan_id(os::random_128().low); }
std::uint64_t confirmed_plan_id(std::uint64_t bits) { return bits | 3; }
std::uint64_t unconfirmed_plan_id(std::uint64_t bits) { return (bits & ~std::uint64_t{3}) | 1; }

std::shared_ptr<const StagedPlan> StagedPlans::find(std::string_view local_plan, std::string_view terms) {
  const auto found = std::find_if(plans_.begin(), plans_.end(), [&](const std::shared_ptr<const StagedPlan>& plan) {
    return plan->terms == terms &&
           save_plan::items_of_message(plan->local_plan) == save_plan::items_of_message(local_plan);
  });
  if (found == plans_.end()) return nullptr;
  plans_.splice(plans_.begin(), plans_, found);
  return plans_.front();
}

void StagedPlans::keep(std::shared_ptr<const StagedPlan> plan) {
  plans_.push_front(std::move(plan));
  if (plans_.size() > kPlansKept) plans_.pop_back();
}

}  // namespace cairn::checkpointer

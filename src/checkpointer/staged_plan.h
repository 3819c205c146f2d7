// StagedPlan: what one rank keeps of an asynchronous save, so that the next one of a state that is built alike needs no
// planning: its items' places in the arena, and in the coordinator's layout what `.metadata` is made from.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpointer/save_items.h"
#include "checkpointer/save_layout.h"
#include "commit/commit_plan.h"
#include "writer/save_writer.h"

namespace cairn::checkpointer {

struct StagedPlan {
  std::uint64_t id = 0;                        // the same on all ranks that planned together, and no other plan has it
  std::string local_plan;                      // encoded: what this rank had, byte items by their size class
  std::string terms;                           // encoded: what else the plan depends on
  std::vector<AssignedItem> items;             // in the order in which they lie in the arena
  std::vector<std::uint64_t> payload_offsets;  // in the arena, one per item
  std::shared_ptr<const writer::StagedLayout> layout;
  std::uint64_t file_bytes = 0;  // of all its files
};

// Lays `sources`, those of plan.items, out in an arena, file behind file. Fills in layout, payload_offsets and
// file_bytes, and brings the items into the order in which they lie. `commit_plan` is the coordinator's, for the
// layout.
Result<void> lay_out_staged(std::span<const data_file::ItemSource> sources, const data_file::ImageIdentity& identity,
                            bool file_per_item, std::shared_ptr<const commit::CommitPlan> commit_plan,
                            StagedPlan& plan);

// The plans of the last few saves. One thread at a time.
class StagedPlans {
 public:
  // Null if there is none.
  std::shared_ptr<const StagedPlan> find(std::string_view local_plan, std::string_view terms);
  void keep(std::shared_ptr<const StagedPlan> plan);

 private:
  std::list<std::shared_ptr<const StagedPlan>> plans_;  // the one used last in front
};

}  // namespace cairn::checkpointer

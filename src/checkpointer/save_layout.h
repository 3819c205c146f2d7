// SaveLayout: all that the coordinator decides before the first byte is written: who writes what into which file, and
// where each item will lie.
//
// Pure. Ranks that follow their assignments come to the same offsets (data_file/item_placement.h), so `.metadata` needs
// nothing from them but that they are done.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>

#include <cstdint>
#include <string>
#include <vector>

#include "checkpointer/save_messages.h"
#include "plan/global_save_plan.h"

namespace cairn::checkpointer {

struct SaveLayout {
  std::vector<SaveAssignment> assignments;  // by rank
  std::vector<std::uint32_t> file_counts;   // by rank
  Catalog catalog;                          // its files are those of rank 0, then those of rank 1, ...
};

// The plans of all ranks, as they came, and who writes what of them.
struct PlannedSave {
  LocalPlans local;
  plan::GlobalSavePlan global;  // looks into `local`
};
Result<PlannedSave> plan_together(const std::vector<std::string>& local_plans, bool dedup_to_lowest_rank);

// The catalog is that of the save of `ticket`, and records `checkpoint_id`. `first_rank` is the number of the first
// rank: not 0 if a rank saves alone.
Result<SaveLayout> lay_out_save(const PlannedSave& planned, const commit::SaveTicket& ticket, std::uint32_t first_rank,
                                std::string checkpoint_id);

}  // namespace cairn::checkpointer

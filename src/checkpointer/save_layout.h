// SaveLayout: the coordinator's decisions before the first byte is written: the rank, the file and the offset of each
// item.
//
// Pure functions. Each rank computes the offsets of its items from its assignment, with equal results
// (data_file/item_placement.h). Therefore the coordinator can make `.metadata` before the ranks have written.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpointer/local_plans.h"
#include "checkpointer/save_messages.h"
#include "plan/global_save_plan.h"

namespace cairn::checkpointer {

struct SaveLayout {
  std::vector<SaveAssignment> assignments;  // by rank
  std::vector<std::uint32_t> file_counts;   // by rank
  Catalog catalog;                          // files of rank 0 first, then of rank 1, ...
};

// The local plans of all ranks, and the rank that writes each of their items.
struct PlannedSave {
  LocalPlans local;
  plan::GlobalSavePlan global;  // points into `local`
};
Result<PlannedSave> plan_together(std::vector<std::string> local_plans, bool dedup_to_lowest_rank);

// The further attributes of the pickled Metadata object `metadata_attributes` (SaveOptions).
Result<std::vector<std::pair<std::string, Value>>> extra_attributes_of(std::string_view metadata_attributes);

// The layout of the save of `ticket`; the catalog records `checkpoint_id`, and the further attributes of the pickled
// Metadata object `metadata_attributes` (SaveOptions). `first_rank` is the number of the first rank: greater than 0
// only if a rank saves alone. Both functions free what they have read: at 16,384 ranks the plans have gigabytes.
Result<SaveLayout> lay_out_save(PlannedSave planned, const commit::SaveTicket& ticket, std::uint32_t first_rank,
                                std::string checkpoint_id, std::string_view metadata_attributes);

}  // namespace cairn::checkpointer

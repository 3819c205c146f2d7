// SaveLayout: the coordinator's decisions before the first byte is written: the assignment of each rank, and the
// catalog with the names of the files.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "save/save_messages.h"
#include "save_plan/joint_layout.h"

namespace cairn::checkpointer {

struct SaveLayout {
  std::vector<SaveAssignment> assignments;  // by rank
  std::vector<std::uint32_t> file_counts;   // by rank
  Catalog catalog;                          // files of rank 0 first, then of rank 1, ...
};

// The layout of the save of `ticket`; the catalog records `checkpoint_id`. `first_rank` is the number of the first
// rank: greater than 0 only if a rank saves alone. For the rest see lay_out_together().
Result<SaveLayout> lay_out_save(save_plan::PlannedSave planned, const commit::SaveTicket& ticket,
                                std::uint32_t first_rank, std::string checkpoint_id,
                                std::string_view metadata_attributes);

}  // namespace cairn::checkpointer

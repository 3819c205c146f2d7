// JointLayout: the files of all ranks of a save, before the first byte is written: the rank, the file and the offset of
// each item.
//
// Pure functions. Each rank computes the offsets of its items from its items alone, with equal results
// (data_file/item_placement.h). Therefore `.metadata` can be made before the ranks have written.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plan/global_save_plan.h"
#include "save_plan/assigned_item.h"
#include "save_plan/local_plans.h"

namespace cairn::save_plan {

// The local plans of all ranks, and the rank that writes each of their items.
struct PlannedSave {
  LocalPlans local;
  plan::GlobalSavePlan global;  // points into `local`
};
Result<PlannedSave> plan_together(std::vector<std::string> local_plans, bool dedup_to_lowest_rank);

// The extra attributes of the pickled Metadata object `metadata_attributes` (SaveOptions).
Result<std::vector<std::pair<std::string, Value>>> extra_attributes_of(std::string_view metadata_attributes);

struct RankLayout {
  std::vector<AssignedItem> items;
  std::uint32_t file_count = 0;
};

struct JointLayout {
  std::vector<RankLayout> ranks;
  // The files have no names yet: those of rank 0 first, then of rank 1, ... The version and the extra attributes of
  // the metadata are set.
  Catalog catalog;
};

// The catalog has the extra attributes of the pickled Metadata object `metadata_attributes` (SaveOptions). Frees what
// it has read: at 16,384 ranks the plans have gigabytes.
Result<JointLayout> lay_out_together(PlannedSave planned, std::string_view metadata_attributes);

}  // namespace cairn::save_plan

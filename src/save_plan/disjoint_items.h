// Disjoint items: the items of ranks of which no two have a common item, as in a save of pipeline stages or of tensors
// that are sharded without replicas. Each rank then writes all of its items, and lays its files out without the plans
// of the other ranks: the joint plan is needed for `.metadata` alone, and can be made later and elsewhere.
//
// The ranks find out by digests: a rank sends seven bytes for each item, and the coordinator looks for equal digests
// without decoding a plan. Digests that are equal by chance (about one job in 500 with 16 million items) only mean that
// the coordinator plans for all ranks.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data_file/file_image.h"
#include "save_plan/joint_layout.h"

namespace cairn::save_plan {

// A rank's local plan, with the digests of its items.
struct DigestedPlan {
  std::string_view digests;      // kDigestBytes for each item
  std::uint32_t file_count = 0;  // files of the rank if the rank writes all of its items
  std::string_view local_plan;   // of encode_local_plan()
};
inline constexpr std::size_t kDigestBytes = 7;

// Two items have equal digests if they have the same key and, for chunks of a tensor, the same offsets: DCP names a
// chunk by key and offsets. `local_plan` is the message of encode_local_plan() for the items.
std::string encode_digested_plan(std::span<const data_file::ItemSource> items, std::uint32_t file_count,
                                 std::string_view local_plan);
// The result points into `message`. kCorrupt for bytes that encode_digested_plan() cannot have written.
Result<DigestedPlan> read_digested_plan(std::string_view message);

// Whether no two items of all ranks have equal digests. Takes eight bytes of memory for each item.
bool are_disjoint(std::span<const DigestedPlan> ranks);

// The layout of ranks with disjoint items. The errors are those of plan_save() for ranks that disagree about a tensor.
// kInternal if a rank does not write exactly its items, in its own order: no files fit such a layout.
Result<JointLayout> lay_out_disjoint(std::vector<std::string> local_plans, std::string_view metadata_attributes);

}  // namespace cairn::save_plan

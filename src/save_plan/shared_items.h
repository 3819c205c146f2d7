// Common items: the items that several ranks of a save have. The ranks agree on the writer of each of them, and each
// rank writes the rest of its items, its own items, without the plans of the other ranks: an optimizer's step count, or
// an empty shard, does not send the items of all ranks to the coordinator. The joint plan of all items is needed for
// `.metadata` alone, and can be made later and elsewhere.
//
// 1. Each rank sends a digest of seven bytes for each of its items, beside its local plan.
// 2. The coordinator looks for equal digests, without decoding a plan (find_common_items()). If no two ranks have a
//    common item, the plan is complete.
// 3. If few items are common, the coordinator names each rank's common items, and each rank sends the local plan of
//    these items, and the bytes of its own items.
// 4. The coordinator plans the common items (plan_common()) with the writes that a plan of all items would have. If
//    many items are common, the coordinator plans all items instead.
//
// Digests that are equal by chance (about one job in 500 with 16 million items) only mean that an item of one rank is
// planned as a common item.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data_file/file_image.h"
#include "plan/global_save_plan.h"
#include "save_plan/assigned_item.h"
#include "save_plan/joint_layout.h"

namespace cairn::save_plan {

// A rank's local plan, with the digests of its items.
struct DigestedPlan {
  std::string_view digests;  // kDigestBytes for each item
  bool file_per_item = false;
  std::string_view local_plan;  // of encode_local_plan()

  std::size_t item_count() const;
};
inline constexpr std::size_t kDigestBytes = 7;

// Two items have equal digests if they have the same key and, for chunks of a tensor, the same offsets: DCP names a
// chunk by key and offsets. `local_plan` is the message of encode_local_plan() for the items.
std::string encode_digested_plan(std::span<const data_file::ItemSource> items, bool file_per_item,
                                 std::string_view local_plan);
// The result points into `message`. kCorrupt for bytes that encode_digested_plan() cannot have written.
Result<DigestedPlan> read_digested_plan(std::string_view message);

struct CommonItems {
  // Many: more than an eighth of all items. A plan of all items then costs less than the added messages.
  enum class Count : std::uint8_t { kNone, kFew, kMany };
  Count count = Count::kNone;
  std::vector<std::vector<std::uint32_t>> ranks;  // with kFew: the indices of each rank's common items, ascending
};
// Takes eight bytes of memory for each item. Of many common items nearly all calls look at a sample only.
CommonItems find_common_items(std::span<const DigestedPlan> ranks);

// The coordinator's message to a rank: the indices of the rank's common items.
std::string encode_indices(std::span<const std::uint32_t> indices);
// kCorrupt unless the indices ascend and are below `item_count`.
Result<std::vector<std::uint32_t>> decode_indices(std::string_view message, std::size_t item_count);

// The items of the rank that are not common, for step 3.
plan::OwnItems own_items(std::span<const data_file::ItemSource> items, std::span<const std::uint32_t> common);

// A rank's answer: its own items, and `local_plan`, the message of encode_local_plan() for its common items.
std::string encode_common_plan(const plan::OwnItems& own, std::string_view local_plan);
struct CommonPlan {
  plan::OwnItems own;
  std::string local_plan;
};
Result<CommonPlan> decode_common_plan(std::string_view message);

// Step 4. The items of the result are those of the ranks' common plans.
Result<PlannedSave> plan_common(std::vector<CommonPlan> ranks, bool dedup_to_lowest_rank);

// The common items of a rank, and those of them that the rank writes. Both ascend by index.
struct CommonShare {
  std::vector<std::uint32_t> common;
  std::vector<AssignedItem> written;
};
void append_common_share(std::string& message, const CommonShare& share);
Result<CommonShare> read_common_share(manifest::CodedReader& reader);

// All items of a rank but those of `share.common`, and `share.written`, by ascending index. kCorrupt if the share does
// not fit `item_count` items.
Result<std::vector<AssignedItem>> with_own_items(const CommonShare& share, std::size_t item_count);

// The plans of all ranks, and the common items of each. The shares are empty, or as many as the ranks.
struct SharedPlans {
  std::vector<std::string> local_plans;  // of encode_local_plan()
  std::vector<CommonShare> shares;
};
// The layout in which each rank writes its own items and its share of the common items. The errors are those of
// plan_save() for ranks that disagree about a tensor; kInternal if the shares do not write each common item once.
Result<JointLayout> lay_out_shared(SharedPlans plans, std::string_view metadata_attributes);

}  // namespace cairn::save_plan

// The confirmation of a resumed plan: whether the metadata that the coordinator will commit describes exactly the files
// that the ranks will write.
//
// A resumed plan comes from the files of a checkpoint (resumed_plan.h), and a checkpoint may come from a stranger, who
// can write any pickle, trailers and fingerprints. The ranks therefore compare their parts before the first use of the
// plan, by one reduction. The steps stand at the top of plan_confirmation.cc.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "commit/save_ticket.h"
#include "coordination/ranks.h"
#include "core/sip_hash.h"
#include "save/staged_plan.h"

namespace cairn::checkpointer {

struct Confirmation {
  std::shared_ptr<const StagedPlan> plan;  // with an id of its own, to be kept; null on all ranks if any part differs
  DifferentSets different = {};            // of the values that the plan watches (rank_differences.h, step 3)
};

// A collective step of all ranks, whose common vote is `plan`, a plan that is not confirmed. `ticket` is that of the
// vote; `items` are all items of this rank. `has_paths`: SaveOptions::record_paths.
Result<Confirmation> confirm_plan(coordination::Ranks& ranks, const commit::SaveTicket& ticket,
                                  const std::shared_ptr<const StagedPlan>& plan,
                                  std::span<const data_file::ItemSource> items, bool has_paths);

// The coordinator's sums, by rank: of the items that the metadata gives to the rank's files.
std::vector<std::uint64_t> sums_by_rank(const ResumedMetadata& metadata, const SipKey& key);

}  // namespace cairn::checkpointer

// The terms of a rank's part of a plan: everything besides the rank's local plan that the plan depends on.
#pragma once

#include <cairn/save.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/fingerprint.h"
#include "format/manifest/recorded_plan.h"

namespace cairn::checkpointer {

// The terms of rank `rank` of `size` ranks, encoded. `options` of the rank's save.
std::string plan_terms(const SaveOptions& options, std::size_t rank, std::size_t size);

// Of a message of encode_local_plan() and the rank's terms. Equal fingerprints of all ranks mean equal plans: the
// commit record keeps the fingerprints.
Fingerprint plan_fingerprint(std::string_view local_plan, std::string_view terms);

// The ranks of a plan for the commit record, from their local plans. The layout adds the numbers of files. A rank alone
// has no fingerprint: it plans without messages, and its commit record has no plan.
std::vector<manifest::RecordedPlan::Rank> recorded_ranks(std::span<const std::string> local_plans,
                                                         const SaveOptions& options);

}  // namespace cairn::checkpointer

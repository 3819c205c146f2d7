// Vote: a rank's part of the agreement that begins a save (save.cc and async_save_operation.cc, step 2). The ranks
// find the smallest of their numbers: one reduction of a few bytes, however many ranks there are.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "commit/save_ticket.h"
#include "coordination/ranks.h"
#include "save/rank_differences.h"

namespace cairn::checkpointer {

struct Vote {
  std::uint64_t plan_id = 0;                 // 0: no earlier plan fits
  std::optional<commit::SaveTicket> ticket;  // the coordinator's, unless the plan comes first: of a model
  // Whether this rank's own directory, maybe not the coordinator's, lacks files of DCP's names.
  bool names_free = true;
  std::size_t coordinator = 0;    // the rank that this rank takes for the coordinator
  ContentSums content_sums = {};  // of the values that the plan watches
  bool differences_noted = false;
};

// The numbers of a rank; of a rank that has failed for nullopt.
std::vector<std::int64_t> numbers_of(const std::optional<Vote>& vote);

struct VoteCount {
  bool all_well = false;      // no rank has failed, all run one version of Cairn, and all have the same coordinator
  std::uint64_t plan_id = 0;  // the plan of all ranks; 0: the ranks have no common plan
  std::optional<commit::SaveTicket> ticket;  // nullopt if no rank had a ticket; fresh only if all ranks' names are free
  DifferentSets different;                   // of the ranks of a common plan
  bool differences_noted = false;            // on any rank
};
// `smallest`: for each place the smallest of the ranks' numbers. kCorrupt if no ranks can have had such numbers.
Result<VoteCount> count_votes(std::span<const std::int64_t> smallest);

// A collective step: counts the votes of all ranks. The error of a rank that has failed takes the place of its vote;
// all ranks then return the failures of all ranks. kUnsupported if the ranks run different versions of Cairn;
// kInvalidArgument if the ranks have different coordinators, whose gather and scatter would wait for each other, or if
// the coordinator is no rank. The coordinator of a vote is that of `ranks`.
Result<VoteCount> hold_vote(coordination::Ranks& ranks, const Result<Vote>& mine);

}  // namespace cairn::checkpointer

// GlobalSavePlan: which rank writes what, when many ranks save one state.
//
// Pure, and a function of its arguments alone: the same local plans give the same plan, on any machine.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "plan/chunk_validation.h"
#include "plan/local_plan.h"

namespace cairn::plan {

// One item that a rank writes, whole or in part.
struct WriteItem {
  static constexpr std::uint32_t kWhole = std::numeric_limits<std::uint32_t>::max();

  std::uint32_t item = 0;      // index into the rank's LocalPlan
  std::uint32_t cut = kWhole;  // index into GlobalSavePlan::cuts, for a replica that several ranks write together

  friend bool operator==(const WriteItem&, const WriteItem&) = default;
};

struct GlobalSavePlan {
  std::vector<std::vector<WriteItem>> ranks;  // by rank; in the order of its LocalPlan, each item at most once
  std::vector<Box> cuts;                      // parts of items' boxes, in the coordinates of the whole tensor

  // The chunk that is written: `item` is the one that `write` names. For tensors only.
  const Box& box_of(const WriteItem& write, const LocalItem& item) const {
    return write.cut == WriteItem::kWhole ? item.box : cuts[write.cut];
  }
};

struct SavePlanOptions {
  // Every duplicate goes to the lowest rank that has it, and nothing is cut: DCP's `dedup_save_to_lowest_rank`.
  bool to_lowest_rank = false;
  // kPart: the ranks need not hold all of every tensor. DCP does without when a single process saves.
  Coverage coverage = Coverage::kWhole;
};

// Decides who writes what. Items with equal key and box are duplicates: one of the ranks that have it writes it, so
// that the ranks' bytes come out even. A tensor that all who have it declare `replicated` is cut between them where it
// is too large for one; the cuts tile it. Plain tensors never are: equal keys of different ranks may hold different
// values, and a mixture of them is worth nothing.
//
// A chunk without elements that begins where another begins is left out: DCP names a chunk by key and offsets.
//
// Fails with kInvalidArgument, naming key and ranks, if ranks disagree about the kind, dtype or shape of a key, a rank
// lists an item twice, the chunks of a tensor do not fit together (see validate_chunks()), or the bytes of all items
// exceed 2^63 - 1. That ranks disagree about `requires_grad` is none: in DCP, too, the first one is recorded.
Result<GlobalSavePlan> plan_save(std::span<const LocalPlan> ranks, const SavePlanOptions& options = {});

}  // namespace cairn::plan

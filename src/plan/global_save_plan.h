// GlobalSavePlan: the writes of each rank, for many ranks that save one state.
//
// Pure: equal local plans give equal global plans, on any machine.
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
  std::uint32_t cut = kWhole;  // index into GlobalSavePlan::cuts, for a replica written by several ranks

  friend bool operator==(const WriteItem&, const WriteItem&) = default;
};

struct GlobalSavePlan {
  std::vector<std::vector<WriteItem>> ranks;  // by rank; in the order of its LocalPlan, each item at most once
  std::vector<Box> cuts;                      // parts of items' boxes, in the coordinates of the whole tensor

  // The chunk of a write; `item` is the rank's item with index `write.item`. For tensors only.
  const Box& box_of(const WriteItem& write, const LocalItem& item) const {
    return write.cut == WriteItem::kWhole ? item.box : cuts[write.cut];
  }
};

// The items that a rank writes and that are not in its LocalPlan: no other rank has them.
struct OwnItems {
  std::uint64_t bytes = 0;
  std::uint64_t empty = 0;  // the number of items without bytes
};

struct SavePlanOptions {
  // The lowest rank that has a duplicate writes the duplicate, and nothing is cut: DCP's `dedup_save_to_lowest_rank`.
  bool to_lowest_rank = false;
  // kPart: the ranks need not hold every element of every tensor. DCP skips the check when a single process saves.
  Coverage coverage = Coverage::kWhole;
  // By rank; empty: the local plans have all items. The balance counts these items.
  std::span<const OwnItems> own = {};
};

// Assigns each item to a writing rank. Items with equal key and box are duplicates: one holder writes the item, and the
// choice evens out the bytes of the ranks. A tensor declared `replicated` by all of its ranks is cut between the ranks
// if a single rank would take too long; the cuts tile the tensor. Plain tensors are never cut: equal keys of different
// ranks may hold different values, and a mixture of the values would be wrong.
//
// A chunk without elements is left out if a second chunk begins at its offsets: DCP names a chunk by key and offsets.
//
// Fails with kInvalidArgument, naming key and ranks, if ranks disagree about the kind, dtype or shape of a key, if a
// rank lists an item twice, if the chunks of a tensor do not fit together (see validate_chunks()), or if the bytes of
// all items exceed 2^63 - 1. Different values of `requires_grad`, and different strides, are no error: like DCP, the
// plan records the first rank's.
Result<GlobalSavePlan> plan_save(std::span<const LocalPlan> ranks, const SavePlanOptions& options = {});

// Checks a plan that was made in parts: the items of all ranks fit together, with the errors of plan_save(), and the
// plan writes each of them once (kInternal). Whether the cuts of an item tile it is not checked.
Result<void> check_plan(std::span<const LocalPlan> ranks, const GlobalSavePlan& plan, Coverage coverage);

}  // namespace cairn::plan

// Rank differences: values that the ranks of a save hold under one key and that differ, so that a checkpoint keeps one
// rank's value (save_plan/shared_content.h). The coordinator warns, once per job.
//
// 1. A save that plans anew compares the digests that come with the local plans, key by key.
// 2. A save that goes on with a plan sends sums of its digests in the vote (vote.h): a sum for each set of ranks that
//    have keys in common. If the sums of a set differ, and no rank has noted a warning, one gather of the digests finds
//    the keys.                                                                                               [gather]
// 3. The first save after a load goes on with the plan of the checkpoint: no rank knows which keys the ranks have in
//    common. The ranks compare the keys, by parts of the state, in the reduction that confirms the plan
//    (plan_confirmation.h). The parts whose keys all ranks have are compared then and from then on.
//
// The warning is noted when the caller gets the warning: a save that fails later has told nothing.
#pragma once

#include <cairn/result.h>

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coordination/ranks.h"
#include "data_file/file_image.h"
#include "save_plan/rank_sets.h"
#include "save_plan/shared_content.h"

namespace cairn::checkpointer {

// An item whose key several ranks have. `salt` stands for the key.
struct WatchedItem {
  std::uint32_t index = 0;
  std::uint64_t salt = 0;
  std::uint32_t set = 0;  // the ranks that have the key (save_plan/rank_sets.h)
};

// Of the common items, those that every save compares. kCorrupt for an index beyond the items.
Result<std::vector<WatchedItem>> watch_items(std::span<const data_file::ItemSource> items,
                                             std::span<const save_plan::CommonItem> common);

// By set of ranks: the sum of the digests of the watched items, equal on all ranks of the set whose items have equal
// content. Nullopt: no item of the set.
using ContentSums = std::array<std::optional<std::uint64_t>, save_plan::kRankSetsMax>;
using DifferentSets = std::bitset<save_plan::kRankSetsMax>;

ContentSums content_sums(std::span<const data_file::ItemSource> items, std::span<const WatchedItem> watched);

// Step 2, a collective step, for the sets with different sums. Returns the warning at the coordinator; nullopt on the
// other ranks, and if no item differs any more.
Result<std::optional<std::string>> find_differences(coordination::Ranks& ranks,
                                                    std::span<const data_file::ItemSource> items,
                                                    std::span<const WatchedItem> watched,
                                                    const DifferentSets& different);

// Step 1: the items whose digests a rank sends. None of a process alone.
inline std::span<const data_file::ItemSource> contents_to_send(const coordination::Ranks& ranks,
                                                               std::span<const data_file::ItemSource> items) {
  return ranks.size() > 1 ? items : std::span<const data_file::ItemSource>();
}
// The coordinator's part. Removes the digests from the ends of the local plans.
Result<std::vector<std::string>> take_all_contents(std::vector<std::string>& local_plans);

struct PlannedComparison {
  std::optional<std::string> warning;
  std::vector<std::vector<save_plan::CommonItem>> watched;  // by rank; empty: nothing is watched
};
// `contents`: of take_all_contents(). Compares nothing for a process alone.
Result<PlannedComparison> compare_planned(std::span<const plan::LocalPlan> plans,
                                          std::span<const std::string> contents);

// Whether a warning was noted in this job. Thread-safe. A forked child is a new job.
bool are_differences_noted();
// Notes a warning that the caller gets now. False if one was noted before: saves may overlap.
bool note_differences();
// Begins a new job, for tests.
void forget_differences();

// Step 3: the compared items of a rank, in parts: the entries of the state dict, distributed by hash.
class ContentParts {
 public:
  explicit ContentParts(std::span<const data_file::ItemSource> items);

  static constexpr std::size_t kNumbers = 4 * 32;
  // For the reduction: kNumbers numbers.
  void append_to(std::vector<std::int64_t>& numbers) const;

  struct Common {
    std::vector<WatchedItem> watched;  // of the parts whose keys all ranks have
    DifferentSets different;
  };
  // `smallest`: kNumbers numbers, for each place the smallest of all ranks.
  Common common_of(std::span<const std::int64_t> smallest) const;

 private:
  struct Part {
    std::uint64_t keys = 0;     // a sum of hashes
    std::uint64_t content = 0;  // likewise
    std::vector<WatchedItem> items;
  };
  std::array<Part, kNumbers / 4> parts_;
};

}  // namespace cairn::checkpointer

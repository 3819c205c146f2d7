// StagedPlan: one rank's plan of a save, kept for later saves of a state with equal keys, shapes and dtypes: the items'
// offsets in the arena and, at the coordinator, the commit plan, from which `.metadata` is rendered. A later save that
// finds its plan skips the planning. A synchronous save has no arena, and uses the items and the commit plan.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "commit/meeting/commit_plan.h"
#include "save/rank_differences.h"
#include "save/save_items.h"
#include "save/save_layout.h"
#include "writer/save_writer.h"

namespace cairn::checkpointer {

// The metadata of a checkpoint whose plan a save may go on with.
struct ResumedMetadata {
  Catalog catalog;                         // files of rank 0 first, then of rank 1, ...
  std::vector<std::uint32_t> file_counts;  // by rank
};

struct StagedPlan {
  std::uint64_t id = 0;             // unique to the plan, and equal on all ranks of the plan
  std::string local_plan;           // encoded; byte items are listed by size class
  std::string terms;                // encoded: the rank, the number of ranks and the options that the plan depends on
  std::vector<AssignedItem> items;  // in the order of the arena
  std::vector<std::uint64_t> payload_offsets;  // in the arena, one per item
  std::shared_ptr<const writer::StagedLayout> layout;
  std::uint64_t file_bytes = 0;  // of all files of the rank
  // Values that several ranks have: later saves compare them. Empty if a warning about differences was noted.
  std::vector<WatchedItem> watched;
  // False for a plan from the files of a checkpoint, until the ranks have compared it (plan_confirmation.h).
  bool is_confirmed = true;
  std::shared_ptr<const ResumedMetadata> resumed;  // the coordinator's, of a plan that is not confirmed; else null

  // The number of files of the whole save; 0 if the rank writes no file.
  std::uint32_t save_file_count() const { return layout->files.empty() ? 0 : layout->files.front().index.file_count; }
};

// Random, because plans of several coordinators may meet on one rank: two coordinators would count to equal ids.
std::uint64_t new_plan_id();
// An id of a plan for 64 random bits, different from 0. Ranks that vote for one id thus agree whether the plan is
// confirmed: a stranger who chooses the bits for a plan that is not confirmed cannot choose the id of another plan.
std::uint64_t confirmed_plan_id(std::uint64_t bits);
std::uint64_t unconfirmed_plan_id(std::uint64_t bits);

// Lays `sources`, the sources of plan.items, out in an arena, file after file. Fills in layout, payload_offsets and
// file_bytes, and sorts plan.items into the order of the arena. `commit_plan` goes into the layout; null except at the
// coordinator.
Result<void> lay_out_staged(std::span<const data_file::ItemSource> sources, const data_file::ImageIdentity& identity,
                            bool file_per_item, std::shared_ptr<const commit::CommitPlan> commit_plan,
                            StagedPlan& plan);

// The id of a new layout, unique within the process.
std::uint64_t next_layout_id();

// The plans used most recently, a bounded number. Threads: one at a time.
class StagedPlans {
 public:
  // Null if no kept plan has equal `local_plan` (names_taken aside) and `terms`.
  std::shared_ptr<const StagedPlan> find(std::string_view local_plan, std::string_view terms);
  void keep(std::shared_ptr<const StagedPlan> plan);

 private:
  std::list<std::shared_ptr<const StagedPlan>> plans_;  // most recently used first
};

}  // namespace cairn::checkpointer

// AsyncSaveOperation: one asynchronous save on one rank, from the state dict to the moment when the writer continues
// without the trainer. The steps stand at the top of async_save_operation.cc.
//
// Threads: one at a time.
#pragma once

#include <cairn/async_checkpointer.h>
#include <cairn/result.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "commit/meeting/commit_plan.h"
#include "coordination/ranks.h"
#include "device/links.h"
#include "events/operation.h"
#include "save/agreed_plan.h"
#include "save/save_items.h"
#include "save/save_messages.h"
#include "save/staged_plan.h"
#include "save/staged_save.h"
#include "save/vote.h"
#include "staging/arena_pool.h"
#include "writer/save_writer.h"

namespace cairn::checkpointer {

// The checkpointer's objects that an operation uses. All outlive the operation.
struct AsyncSaveResources {
  staging::ArenaPool* arenas = nullptr;
  writer::SaveWriter* writer = nullptr;
  StagedPlans* plans = nullptr;
  // Runs the work on a new thread, which is joined before the checkpointer ends. kUnavailable if no thread can be
  // started.
  std::function<Result<void>(std::function<void()>)> in_background;
  std::shared_ptr<device::Links> links = std::make_shared<device::Links>();  // shared with the stager and its saves
};

class AsyncSaveOperation {
 public:
  AsyncSaveOperation(const AsyncSaveResources& resources, const std::filesystem::path& directory,
                     const AsyncSaveOptions& options);

  // `state`: the state dict, or the error because of which the caller has none. Call run() once.
  Result<AsyncSave> run(const Result<const StateDict*>& state);

 private:
  Result<AsyncSave> take_steps(const Result<const StateDict*>& state);
  Result<Vote> prepare(const Result<const StateDict*>& state);
  PlanningRank planning();
  Result<void> list_copies();
  Result<void> agree(const Result<Vote>& vote);
  Result<void> plan_anew();
  Result<AsyncSave> begin();
  void write_failure_mark(const Error& reason) const;

  const AsyncSaveResources& resources_;
  std::string directory_;  // absolute: a writer process has a different working directory
  const AsyncSaveOptions& options_;
  std::string checkpoint_id_;
  coordination::Ranks ranks_;
  commit::RankPlace place_;
  SaveItems items_;
  std::string local_plan_;
  std::shared_ptr<const StagedPlan> plan_;
  std::shared_ptr<const StagedPlan> listed_;  // the plan of the listed copies
  std::optional<commit::SaveTicket> ticket_;
  events::Operation events_;  // of shared_ once that exists
  std::shared_ptr<StagedSave> shared_;
  bool is_with_writer_ = false;
};

}  // namespace cairn::checkpointer

// Pruning: the removal of the checkpoints of a run that its rule does not keep. The steps are at the top of pruning.cc.
#pragma once

#include <cairn/result.h>
#include <cairn/retention.h>

#include <filesystem>
#include <functional>

#include "commit/checkpoint_removal.h"
#include "events/work.h"
#include "run/run_root.h"

namespace cairn::run {

RemovedCheckpoint removed_checkpoint(const std::filesystem::path& directory, commit::CheckpointRemoval removal);

// As cairn::prune(), below `root`. `work` gets the number of removed checkpoints.
Result<PruneReport> prune(RunRoot& root, const PruneOptions& options, const events::Work& work = {});

// Finishes the removals in the directories of `root` that a crash has interrupted, as the first step of prune(). The
// report has these alone. Ends early after a first true of `interrupted`.
Result<PruneReport> finish_removals(RunRoot& root, const std::function<bool()>& interrupted);

}  // namespace cairn::run

// claim_model: the claim of a directory for a save of a safetensors model, with the ranks' plan.
#pragma once

#include <cairn/result.h>
#include <cairn/save.h>

#include "commit/save_ticket.h"
#include "save/save_layout.h"
#include "save/save_worker.h"

namespace cairn::checkpointer {

// `options.safetensors` is set. If each file is written by one rank, changes `planned` by assign_whole_files().
Result<commit::SaveTicket> claim_model(SaveWorker& worker, save_plan::PlannedSave& planned, const SaveOptions& options);

}  // namespace cairn::checkpointer

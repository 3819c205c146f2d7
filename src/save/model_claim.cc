#include "save/model_claim.h"

#include "commit/job_identity.h"
#include "commit/model/model_commit.h"
#include "save/model_layout.h"

namespace cairn::checkpointer {

Result<commit::SaveTicket> claim_model(SaveWorker& worker, save_plan::PlannedSave& planned,
                                       const SaveOptions& options) {
  const SafetensorsForm& form = *options.safetensors;
  if (!form.sharded) CAIRN_TRY(assign_whole_files(planned, form));
  commit::ModelClaimOptions claim;
  claim.kind = form.sharded ? safetensors::FileSet::Kind::kShards : safetensors::FileSet::Kind::kIndexed;
  claim.overwrite = options.overwrite;
  claim.overwrite_with_shards = form.for_consolidation;
  claim.names_taken = planned.local.names_taken();
  return worker.claim_model(commit::next_save_identity(commit::SaveForm::kModel), claim);
}

}  // namespace cairn::checkpointer

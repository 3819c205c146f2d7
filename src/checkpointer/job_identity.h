// JobIdentity: the id of this process's job, the start of the job, and the number of saves begun.
//
// latest() orders checkpoints by the start of the job and by the number of the save within the job. The start of a job
// is the time of the job's first save by this host's clock. Clocks of two hosts differ: if a process has opened a
// checkpoint of a job A, the start of the process's own job is set later than the start of A, against the clock if
// necessary.
#pragma once

#include "commit/lease.h"
#include "format/manifest/commit_record.h"

namespace cairn::checkpointer {

// The identity of the next save: a fresh save id, the job's id and the next number. A forked child is a new job.
// Thread-safe.
commit::SaveIdentity next_save_identity(commit::SaveForm form = commit::SaveForm::kCheckpoint);

// Orders later saves of this process after the saves of the job that committed `record`. Does nothing for a record of
// this process's own job, and for a record without a start. Thread-safe.
void order_saves_after(const manifest::CommitRecord& record);

}  // namespace cairn::checkpointer

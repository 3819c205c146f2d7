// JobIdentity: the job that this process is, when it started, and how many saves it has begun.
//
// latest() orders checkpoints by the start of their job and by the number of the save within it. The start is the time
// of the job's first save by this host's clock. Clocks of two hosts differ, so a job whose process has opened a
// checkpoint of another job starts after that job, whatever the clock says.
#pragma once

#include "commit/lease.h"
#include "format/manifest/commit_record.h"

namespace cairn::checkpointer {

// The identity of the next save: a fresh save id, the job's id and the next number. A forked child is a job of its own.
// Thread-safe.
commit::SaveIdentity next_save_identity();

// Later saves of this process are ordered after the saves of the job that committed `record`. Does nothing for a record
// of this process's own job or without a start. Thread-safe.
void order_saves_after(const manifest::CommitRecord& record);

}  // namespace cairn::checkpointer

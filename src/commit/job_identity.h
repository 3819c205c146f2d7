// JobIdentity: the id of this process's job, the start of the job, and the number of saves begun.
//
// latest() orders checkpoints by the start of the job and by the number of the save within the job. The start of a job
// is the time of the job's first save by this host's clock. Clocks of two hosts differ: if a process has opened a
// checkpoint of a job A, the start of the process's own job is set later than the start of A, against the clock if
// necessary.
#pragma once

#include <cstdint>
#include <string_view>

#include "commit/lease.h"

namespace cairn::commit {

// The identity of the next save: a fresh save id, the job's id and the next number. A forked child is a new job.
// Thread-safe.
SaveIdentity next_save_identity(SaveForm form = SaveForm::kCheckpoint);

// The identity of a copy by a conversion, which is a save of no job. An exact copy of a checkpoint has the start of the
// original's job and the number of the original; for any other copy both are 0.
SaveIdentity copy_identity(SaveForm form, std::uint64_t job_start = 0, std::uint64_t save_number = 0);

// Orders later saves of this process after the saves of the job with this id (32 hexadecimal digits) and start. Does
// nothing for this process's own job, and for the start 0, which means that the start is unknown. Thread-safe.
void order_saves_after(std::string_view job_id, std::uint64_t job_start);

}  // namespace cairn::commit

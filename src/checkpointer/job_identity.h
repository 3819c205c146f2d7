// JobIdentity: which job this process is, and how many saves it has begun.
#pragma once

#include "transfer/lease.h"

namespace cairn::checkpointer {

// The identity of the next save: a fresh save id, the job's id and the next number. A forked child is a job of its own.
// Thread-safe.
transfer::SaveIdentity next_save_identity();

}  // namespace cairn::checkpointer

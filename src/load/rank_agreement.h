// prepare_together: steps 1 and 2 of a load (load.cc), which all ranks make or none.
#pragma once

#include <cairn/checkpoint.h>
#include <cairn/result.h>

#include <string>
#include <vector>

#include "coordination/ranks.h"
#include "load/loader.h"

namespace cairn::checkpointer {

// The messages of all ranks.
Result<std::vector<std::string>> prepare_together(const Checkpoint& checkpoint, Loader& loader,
                                                  const LoadOptions& options, coordination::Ranks& ranks);
// The error with the checkpoint's directory.
Error naming_directory(const Checkpoint& checkpoint, Error error);

}  // namespace cairn::checkpointer

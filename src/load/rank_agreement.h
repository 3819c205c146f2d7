// prepare_together: steps 1 and 2 of a load (load.cc), which all ranks make or none. load_once, begin_load, end_load: a
// load and its events.
#pragma once

#include <cairn/checkpoint.h>
#include <cairn/result.h>

#include <string>
#include <string_view>
#include <vector>

#include "coordination/ranks.h"
#include "events/operation.h"
#include "load/loader.h"

namespace cairn::checkpointer {

// The messages of all ranks.
Result<std::vector<std::string>> prepare_together(const Checkpoint& checkpoint, Loader& loader,
                                                  const LoadOptions& options, coordination::Ranks& ranks);
// Checkpoint::load() without its first and last event.
Result<LoadReport> load_once(const Checkpoint& checkpoint, StateDict& state, const LoadOptions& options,
                             events::Operation& events);
events::Operation begin_load(std::string_view directory, const LoadOptions& options);
void end_load(events::Operation& events, Result<LoadReport>& report);
// The error with the checkpoint's directory.
Error naming_directory(const Checkpoint& checkpoint, Error error);

}  // namespace cairn::checkpointer

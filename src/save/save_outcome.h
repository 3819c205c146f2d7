// The end of a save of several ranks: the coordinator commits and tells every rank, and every rank settles its files.
#pragma once

#include <cairn/result.h>

#include <functional>
#include <string>
#include <vector>

#include "coordination/ranks.h"
#include "save/save_messages.h"
#include "save/save_worker.h"

namespace cairn::checkpointer {

// A collective step. `written`: the answers of all ranks about their files, or the failures. The coordinator calls
// `commit` if all ranks have written; its result is encode_committed(). After a failure the rank's files are withdrawn,
// on the coordinator's word; after a success the private folder is removed, and a clean-up that fails is a warning.
Result<Committed> share_outcome(coordination::Ranks& ranks, SaveWorker& worker,
                                const Result<std::vector<std::string>>& written,
                                const std::function<Result<std::string>()>& commit);

}  // namespace cairn::checkpointer

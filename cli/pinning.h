// `cairn pin` and `cairn unpin`: protect checkpoints from `cairn prune` and `cairn rm`.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "outcome.h"

namespace cairn::cli {

// Both go on with the next directory after an error, and then return kUnreadable.
Outcome pin(const std::vector<std::filesystem::path>& directories, const std::string& note, bool as_json);
Outcome unpin(const std::vector<std::filesystem::path>& directories, bool as_json);

}  // namespace cairn::cli

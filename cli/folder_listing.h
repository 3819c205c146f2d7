// The checkpoints of a folder: time, size, contents, and which is the newest.
#pragma once

#include <filesystem>

#include "outcome.h"

namespace cairn::cli {

bool has_metadata(const std::filesystem::path& directory);

// Looks for checkpoints one level down. Names are sorted with their numbers as numbers (natural_order.h); the newest is
// the one that cairn::latest() returns. A directory with data files but no `.metadata` is listed as incomplete. The
// exit code is kUnreadable if a checkpoint can't be read, or if there is none.
Outcome list_folder(const std::filesystem::path& folder, bool json);

}  // namespace cairn::cli

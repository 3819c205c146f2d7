// `cairn ls`: a line per key of a checkpoint, or per checkpoint of a folder.
#pragma once

#include <filesystem>

#include "outcome.h"

namespace cairn::cli {

// A directory with `.metadata` is a checkpoint. Any other is a folder, whose checkpoints are looked for one level down;
// a directory with data files but no `.metadata` is listed as incomplete.
Outcome list(const std::filesystem::path& directory);

}  // namespace cairn::cli

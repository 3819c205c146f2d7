// `cairn status`: the saves that are under way in a directory, and those that died there.
#pragma once

#include <filesystem>

#include "outcome.h"

namespace cairn::cli {

// As cairn::saves_in_flight(): `root` is a checkpoint or a folder of checkpoints.
Outcome status(const std::filesystem::path& root, bool as_json);

}  // namespace cairn::cli

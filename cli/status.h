// `cairn status`: the running saves in a directory, and the saves that died there.
#pragma once

#include <filesystem>

#include "outcome.h"

namespace cairn::cli {

// Like cairn::saves_in_flight(): `root` is a checkpoint or a folder of checkpoints.
Outcome status(const std::filesystem::path& root, bool as_json);

}  // namespace cairn::cli

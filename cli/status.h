// `cairn status`: the saves that are under way in a directory, and those that died there.
#pragma once

#include <filesystem>

#include "outcome.h"

namespace cairn::cli {

// Of a checkpoint, or of a folder of checkpoints: the directories in it are looked at too.
Outcome status(const std::filesystem::path& directory, bool as_json);

}  // namespace cairn::cli

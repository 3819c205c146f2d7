// `cairn clean`: removes the files of dead saves.
#pragma once

#include <filesystem>

#include "outcome.h"

namespace cairn::cli {

// Like cairn::clean(). Returns kUnreadable if a dead save, or a file of it, could not be removed.
Outcome clean(const std::filesystem::path& root, bool dry_run, bool as_json);

}  // namespace cairn::cli

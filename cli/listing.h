// `cairn ls`: a line per key of a checkpoint, or per checkpoint of a folder.
#pragma once

#include <cstddef>
#include <filesystem>

#include "outcome.h"

namespace cairn::cli {

// A longer name does not widen the column of names.
inline constexpr std::size_t kNameColumnMax = 48;

// A directory with `.metadata` is a checkpoint. Any other directory is a folder of checkpoints (folder_listing.h).
Outcome list(const std::filesystem::path& directory, bool json);

}  // namespace cairn::cli

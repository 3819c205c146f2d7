// `cairn verify`: every byte of a checkpoint against its checksum, every chunk against its tensor.
#pragma once

#include <filesystem>

#include "outcome.h"

namespace cairn::cli {

// Returns kCheckFailed if the checkpoint is damaged, metadata included. Draws a progress bar if stderr is a terminal;
// Ctrl-C ends the process at once.
Outcome verify(const std::filesystem::path& directory, bool json, bool follow_links);

}  // namespace cairn::cli

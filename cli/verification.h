// `cairn verify`: every byte of a checkpoint against its checksum, every chunk against its tensor.
#pragma once

#include <filesystem>
#include <vector>

#include "outcome.h"
#include "progress_bar.h"

namespace cairn::cli {

// Checks each directory, and of several prints each report when it is complete, and a summary. Returns the greatest
// exit code: kCheckFailed if a checkpoint is damaged, metadata included; kUnreadable if one is missing or can't be
// read. Ctrl-C ends the process at once.
Outcome verify(const std::vector<std::filesystem::path>& directories, bool json, bool follow_links, ProgressBar& bar);

}  // namespace cairn::cli

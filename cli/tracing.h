// `cairn trace`: merges the traces of the processes of a job.
#pragma once

#include <filesystem>

#include "outcome.h"

namespace cairn::cli {

// Writes the merged trace into `output`, or prints it if `output` is empty. An existing file is replaced only if
// `overwrite`.
Outcome merge_traces(const std::filesystem::path& directory, const std::filesystem::path& output, bool overwrite);

}  // namespace cairn::cli

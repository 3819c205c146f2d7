// `cairn inspect`: what a checkpoint holds: its keys with shape, dtype, bytes, chunks and files, and its short values.
#pragma once

#include <filesystem>

#include "outcome.h"

namespace cairn::cli {

// A value that can't be read is shown as such; the rest is shown all the same, and the exit code is kUnreadable.
Outcome inspect(const std::filesystem::path& directory, bool json);

}  // namespace cairn::cli

// The directories that may hold checkpoints: a root and the root's directories.
#pragma once

#include <cairn/result.h>

#include <filesystem>
#include <optional>
#include <vector>

namespace cairn::checkpointer {

// Whether the directory has the name of a save's private folder.
bool is_private_folder(const std::filesystem::path& path);

using CheckpointDirectories = std::vector<std::filesystem::path>;

// `root` first, then its directories and its links to directories, in no order, without the private folders of saves.
// Nullopt if `root` is missing; kInvalidArgument if `root` is not a directory.
Result<std::optional<CheckpointDirectories>> checkpoint_directories(const std::filesystem::path& root);

}  // namespace cairn::checkpointer

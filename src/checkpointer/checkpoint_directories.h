// The directories that may hold checkpoints: a root and the directories in it.
#pragma once

#include <cairn/result.h>

#include <filesystem>
#include <optional>
#include <vector>

namespace cairn::checkpointer {

// Whether the directory has the name of a private folder, in which a save works.
bool is_private_folder(const std::filesystem::path& path);

using CheckpointDirectories = std::vector<std::filesystem::path>;

// `root` first, then the directories in it, and the links to directories, in no order. The private folders of saves are
// left out. Nullopt if there is no `root`; kInvalidArgument if it is not a directory.
Result<std::optional<CheckpointDirectories>> checkpoint_directories(const std::filesystem::path& root);

}  // namespace cairn::checkpointer

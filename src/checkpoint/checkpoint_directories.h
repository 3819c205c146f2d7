// The directories that may hold checkpoints: a root and the root's directories.
#pragma once

#include <cairn/result.h>

#include <filesystem>
#include <optional>
#include <vector>

#include "commit/directory/new_directory.h"

namespace cairn::checkpointer {

// Whether the directory has the name of a save's private folder.
bool is_private_folder(const std::filesystem::path& path);

using CheckpointDirectories = std::vector<std::filesystem::path>;

// `root` first, then its directories and its links to directories, in no order, without the private folders of saves.
// Nullopt if `root` is missing; kInvalidArgument if `root` is not a directory.
Result<std::optional<CheckpointDirectories>> checkpoint_directories(const std::filesystem::path& root);

// The new directory of a save of a whole directory (commit/directory/new_directory.h), beside the directory that the
// save is for.
struct PlacedNewDirectory {
  std::filesystem::path parent;
  commit::NewDirectory directory;

  std::filesystem::path path() const { return parent / commit::name_of_new_directory(directory); }
  std::filesystem::path checkpoint() const { return parent / directory.name; }  // may be missing
};

// The new directories for checkpoints in `root`, and those for `root` itself, which may be missing. Leaves out those in
// a directory that can't be listed.
std::vector<PlacedNewDirectory> placed_new_directories(const std::filesystem::path& root);

}  // namespace cairn::checkpointer

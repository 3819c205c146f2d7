#include "checkpoint/checkpoint_directories.h"

#include "commit/lease.h"
#include "storage/open_directory.h"

namespace cairn::checkpointer {

bool is_private_folder(const std::filesystem::path& path) {
  return path.filename().string().starts_with(commit::kFolderPrefix);
}

Result<std::optional<CheckpointDirectories>> checkpoint_directories(const std::filesystem::path& root) {
  CAIRN_TRY_ASSIGN(std::optional<CheckpointDirectories> found, storage::directories_in(root));
  if (!found) return found;
  std::erase_if(*found, is_private_folder);
  found->insert(found->begin(), root);
  return found;
}

}  // namespace cairn::checkpointer

#include "checkpointer/checkpoint_directories.h"

#include "commit/lease.h"
#include "storage/open_directory.h"

namespace cairn::checkpointer {

Result<std::optional<CheckpointDirectories>> checkpoint_directories(const std::filesystem::path& root) {
  CAIRN_TRY_ASSIGN(std::optional<CheckpointDirectories> found, storage::directories_in(root));
  if (!found) return found;
  std::erase_if(*found, [](const std::filesystem::path& directory) {
    return directory.filename().string().starts_with(commit::kFolderPrefix);
  });
  found->insert(found->begin(), root);
  return found;
}

}  // namespace cairn::checkpointer

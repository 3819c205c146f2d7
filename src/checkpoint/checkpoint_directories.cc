#include "checkpoint/checkpoint_directories.h"

#include <cairn/bucket_url.h>

#include <utility>

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

std::vector<PlacedNewDirectory> placed_new_directories(const std::filesystem::path& root) {
  std::vector<PlacedNewDirectory> placed;
  const auto add = [&placed](const std::filesystem::path& parent, const std::string& name) {
    for (const std::string& entry : storage::directories_named(parent, commit::kNewDirectoryPrefix)) {
      auto directory = commit::new_directory_of_name(entry);
      const bool is_wanted = directory && (name.empty() || directory->name == name);
      if (is_wanted) placed.push_back({parent, *std::move(directory)});
    }
  };
  if (is_bucket_url(root)) return placed;  // a bucket has no rename: no save of a whole directory
  add(root, "");
  const std::filesystem::path real = storage::resolved(root);
  if (real.has_filename()) add(real.parent_path(), real.filename().string());
  return placed;
}

}  // namespace cairn::checkpointer

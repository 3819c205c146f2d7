#include "checkpoint/save_wait.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "checkpoint/checkpoint_directories.h"
#include "commit/dead_saves.h"
#include "storage/backoff.h"
#include "storage/open_directory.h"

namespace cairn::checkpointer {
namespace {

bool has_save_in_flight(const std::filesystem::path& directory) {
  const auto storage = storage::open_directory(directory);
  if (!storage) return false;
  const Result<bool> has_living = commit::has_living_save(**storage);
  return has_living && *has_living;
}

bool has_whole_save_in_flight(const std::filesystem::path& root) {
  const std::vector<PlacedNewDirectory> placed = placed_new_directories(root);
  return std::any_of(placed.begin(), placed.end(),
                     [](const PlacedNewDirectory& it) { return has_save_in_flight(it.path()); });
}

}  // namespace

Result<bool> wait_for_saves(const std::filesystem::path& root, std::chrono::milliseconds wait_max,
                            const std::function<bool()>& interrupted) {
  if (wait_max <= std::chrono::milliseconds(0)) return true;
  const auto start = std::chrono::steady_clock::now();
  for (storage::Backoff backoff;; backoff.pause()) {
    if (interrupted && interrupted()) {
      return Error(ErrorCode::kCancelled, "interrupted while waiting for saves in flight");
    }
    // The new directories first: a commit moves a save from a new directory into a directory of the list.
    const bool has_whole = has_whole_save_in_flight(root);
    CAIRN_TRY_ASSIGN(const std::optional<CheckpointDirectories> directories, checkpoint_directories(root));
    const bool waits = has_whole || (directories && std::ranges::any_of(*directories, has_save_in_flight));
    if (!waits) return true;
    if (std::chrono::steady_clock::now() - start >= wait_max) return false;
  }
}

}  // namespace cairn::checkpointer

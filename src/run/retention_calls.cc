#include <cairn/retention.h>

#include <memory>
#include <optional>
#include <utility>

#include "commit/checkpoint_removal.h"
#include "commit/pin.h"
#include "events/operation.h"
#include "run/pruning.h"
#include "run/run_root.h"
#include "storage/open_directory.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;

// "removing the checkpoint in 'step-10'"
Error explained(Error error, const char* action, const fs::path& directory) {
  return std::move(error).while_doing(std::string(action) + " '" + directory.string() + "'");
}

// `was_interrupted`: of the returned removal.
Result<commit::CheckpointRemoval> remove_from(storage::Storage& storage, commit::Removal removal, bool& was_interrupted,
                                              const std::shared_ptr<WorkCount>& count) {
  CAIRN_TRY_ASSIGN(const commit::MetadataInPlace in_place, commit::read_metadata_in_place(storage));
  if (!in_place.present) {
    CAIRN_TRY_ASSIGN(std::optional<commit::CheckpointRemoval> finished,
                     commit::finish_removal(storage, removal, count.get()));
    was_interrupted = finished.has_value();
    if (finished) return *std::move(finished);
  }
  return commit::remove_checkpoint(storage, in_place, removal, nullptr, count.get());
}

}  // namespace

Result<PruneReport> prune(const fs::path& root, const PruneOptions& options) {
  const events::Work work = events::Work::begin(WorkKind::kPrune, root.native(), events::Work::Unit::kDirectories);
  Result<PruneReport> report = run::prune(*run::run_root(root), options, work);
  work.end(report.has_value());
  return report;
}

Result<RemovedCheckpoint> remove_checkpoint(const fs::path& directory, const RemoveOptions& options) {
  CAIRN_TRY_ASSIGN(const std::unique_ptr<storage::Storage> storage, storage::open_directory(directory));
  events::Operation events = options.dry_run ? events::Operation() : events::Operation::of_removal(directory.native());
  bool was_interrupted = false;
  auto removal = remove_from(*storage, options.dry_run ? commit::Removal::kTry : commit::Removal::kDo, was_interrupted,
                             events.work().count());
  if (!removal) {
    Error reason = explained(std::move(removal).error(), "removing the checkpoint in", directory);
    events.fail(reason);
    return reason;
  }
  RemovedCheckpoint removed = run::removed_checkpoint(directory, *std::move(removal));
  removed.was_interrupted = was_interrupted;
  events.end(EventKind::kDeleted, removed.bytes);
  if (!options.dry_run) removed.keeps_directory = !run::remove_if_empty(directory);
  return removed;
}

Result<void> pin(const fs::path& directory, const std::string& note) {
  CAIRN_TRY_ASSIGN(const std::unique_ptr<storage::Storage> storage, storage::open_directory(directory));
  auto pinned = commit::pin(*storage, note);
  if (!pinned) return explained(std::move(pinned).error(), "pinning the checkpoint in", directory);
  return {};
}

Result<bool> unpin(const fs::path& directory) {
  CAIRN_TRY_ASSIGN(const std::unique_ptr<storage::Storage> storage, storage::open_directory(directory));
  auto unpinned = commit::unpin(*storage);
  if (!unpinned) return explained(std::move(unpinned).error(), "unpinning the checkpoint in", directory);
  return unpinned;
}

Result<std::optional<std::string>> read_pin(const fs::path& directory) {
  CAIRN_TRY_ASSIGN(const std::unique_ptr<storage::Storage> storage, storage::open_directory(directory));
  return commit::note_of_pin(*storage);
}

}  // namespace cairn

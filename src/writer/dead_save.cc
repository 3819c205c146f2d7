#include "writer/dead_save.h"

#include <filesystem>
#include <utility>

#include "commit/directory/new_directory.h"
#include "commit/leftovers.h"
#include "commit/meeting/save_marks.h"
#include "commit/metadata_in_place.h"
#include "storage/open_directory.h"

namespace cairn::writer {
namespace {

// Of a save of a whole directory.
Error clean_up_dead_directory(const std::filesystem::path& above, const commit::NewDirectory& directory,
                              const DeadSave& save, Error reason) {
  const auto parent = storage::open_directory(above);
  if (!parent) return reason;
  if (save.follower_rank) {
    const auto opened = (*parent)->open_folder(commit::name_of_new_directory(directory));
    if (!opened) return reason;
    commit::SaveMarks marks(**opened, save.save_id);
    if ((*opened)->join_folder(marks.folder())) (void)marks.write_failure(*save.follower_rank, reason);
    return reason;
  }
  const Result<bool> committed = commit::clean_up_after_directory(**parent, directory);
  if (committed && !*committed) return reason;
  return std::move(reason).actual(
      committed ? "the directory of this save is in place, and the directory above is synced"
                : "the sync of the directory above failed (" + std::string(committed.error().what()) +
                      "): look whether the directory of this save is in place");
}

}  // namespace

Error clean_up_dead_save_in(storage::Storage& storage, const DeadSave& save, Error reason) {
  const auto metadata = commit::read_metadata_in_place(storage, save.metadata_name);
  const bool in_place = metadata && metadata->record && metadata->record->save_id == save.save_id;
  if (save.follower_rank) {
    commit::SaveMarks marks(storage, save.save_id);
    if (!in_place && storage.join_folder(marks.folder())) (void)marks.write_failure(*save.follower_rank, reason);
    return in_place ? std::move(reason).actual("the checkpoint of this save is in place") : reason;
  }
  const Result<void> synced = commit::clean_up_after(storage, save.save_id);
  if (!in_place) return reason;
  return std::move(reason).actual(
      synced ? "the checkpoint of this save is in place, and its directory is synced"
             : "the checkpoint of this save is in place, but the sync of its directory failed (" +
                   std::string(synced.error().what()) +
                   "): a power failure may bring the old checkpoint back; the files of both are kept");
}

Error clean_up_dead_save(const DeadSave& save, Error reason) {
  const std::filesystem::path path(save.directory);
  if (const auto directory = commit::new_directory_of_name(path.filename().string())) {
    return clean_up_dead_directory(path.parent_path(), *directory, save, std::move(reason));
  }
  const auto storage = storage::open_directory(save.directory);
  if (!storage) return reason;
  return clean_up_dead_save_in(**storage, save, std::move(reason));
}

}  // namespace cairn::writer

// PosixStorage: a directory of a local or network file system.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "os/fd.h"
#include "storage/posix/creation_mask.h"
#include "storage/posix/descriptor_cache.h"
#include "storage/posix/held_folders.h"
#include "storage/storage.h"

namespace cairn::storage {

// New files and folders follow the given umask, or the umask of the process. The storage holds the directory open, and
// the directory may be renamed while the storage is in use. The files open for reading use at most a quarter of the
// process's descriptors at a time.
class PosixStorage final : public Storage {
 public:
  // Opens `directory`, following links; kNotFound if `directory` is missing.
  static Result<std::unique_ptr<PosixStorage>> open_directory(const std::filesystem::path& directory,
                                                              std::optional<mode_t> umask = std::nullopt);
  // As open_directory, after making `directory` and its parents if they are missing.
  static Result<std::unique_ptr<PosixStorage>> make_directory(const std::filesystem::path& directory,
                                                              std::optional<mode_t> umask = std::nullopt);

  Result<std::unique_ptr<StorageLock>> lock() override;
  void set_stop(std::shared_ptr<const os::StopFlag> stop) override { stop_ = std::move(stop); }
  Result<void> make_folder(std::string_view name) override;
  Result<void> join_folder(std::string_view name) override;
  Result<void> remove_folder(std::string_view name) override;
  Result<std::unique_ptr<WritableFile>> create(std::string_view name, const CreateOptions& options) override;
  Result<void> create_whole(std::string_view name, std::string_view bytes, Durability durability) override;
  Result<std::unique_ptr<ReadableFile>> open(std::string_view name, bool follow_links) const override;
  Result<std::vector<ListedFile>> list(std::string_view folder) const override;
  Result<void> publish(std::string_view from, std::string_view to) override;
  Result<void> replace(std::string_view from, std::string_view to) override;
  Result<void> remove(std::string_view name) override;
  Result<void> sync(std::string_view folder) override;
  Result<void> rewrite(std::string_view name, std::string_view bytes) override;
  Result<void> touch(std::string_view name) override;
  Result<double> touched_at(std::string_view name) const override;
  Result<std::unique_ptr<Storage>> open_parent() const override;
  Result<std::unique_ptr<Storage>> open_folder(std::string_view name) const override;
  Result<void> move_folder(std::string_view from, std::string_view to) override;
  Result<void> exchange_folders(std::string_view one, std::string_view two) override;
  Result<bool> can_exchange_folders() override;

 private:
  PosixStorage(os::Fd directory, std::vector<os::Fd> parents, std::optional<mode_t> umask)
      : directory_(std::make_shared<const os::Fd>(std::move(directory))),
        umask_(umask),
        mask_(umask, directory_->get()),
        parents_of_made_(std::move(parents)) {}

  // A name, and its parent folder.
  struct Place {
    std::shared_ptr<const os::Fd> folder;  // also owned by the storage if the folder is the directory itself or is held
    std::string name;
  };
  // Makes the name of the directory, and the names of the parents made by make_directory, survive a power cut.
  Result<void> sync_parents();
  // Finds the folder of `name`. Follows no links.
  Result<Place> place_of(std::string_view name) const;
  // As place_of, for a file about to be renamed: fails if its folder is held and was replaced.
  Result<Place> place_to_move_from(std::string_view name) const;
  // Gives `file`, of the name `name`, the mode of the regular file that it is going to replace.
  static Result<void> take_mode(const Place& replaced, const Place& file, std::string_view name);

  // directory_ and descriptors_ are owned by the storage and by every file opened for reading: a file may have to
  // reopen itself. directory_ is also owned by the lock and by folders_.
  std::shared_ptr<const os::Fd> directory_;
  const std::optional<mode_t> umask_;
  CreationMask mask_;
  std::shared_ptr<DescriptorCache> descriptors_ =
      std::make_shared<DescriptorCache>(DescriptorCache::share_of_process());
  HeldFolders folders_{directory_};
  std::shared_ptr<const os::StopFlag> stop_;   // null, or as in set_stop
  const std::vector<os::Fd> parents_of_made_;  // the parents of the directories made by make_directory, to be synced
  std::atomic<bool> parents_synced_ = false;   // parents_of_made_, and the parent of the directory
};

}  // namespace cairn::storage

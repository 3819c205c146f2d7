// HeldFolders: the folders made or joined by this process below one directory. Each folder is held by a descriptor: a
// user with write access to the directory can't divert operations by replacing a folder.
//
// Thread-safe. The directory's descriptor is shared and outlives the object.
#pragma once

#include <cairn/result.h>
#include <sys/types.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "os/fd.h"

namespace cairn::storage {

class HeldFolders {
 public:
  explicit HeldFolders(std::shared_ptr<const os::Fd> directory) : directory_(std::move(directory)) {}

  // Makes a folder with access for the current user only, and holds the folder. The mode is 0700 under every umask. An
  // inherited set-group-ID bit and inherited default ACLs stay in force: files renamed out of the folder keep the group
  // and ACLs of the directory. kUnsafe if another user replaced the folder before the folder was opened.
  Result<void> make(const std::string& name);
  // Holds an existing folder. kNotFound if the folder is missing; kUnsafe if the name is a link or another user's
  // folder.
  Result<void> join(const std::string& name);
  // The descriptor of a held folder; null if the folder is not held.
  std::shared_ptr<const os::Fd> find(std::string_view name) const;
  // For a held folder: kNotFound if the name is gone, kUnsafe if the name belongs to a different folder. A folder that
  // is not held passes.
  Result<void> check(const std::string& name) const;
  // As check, for the folder that is open as `fd`.
  Result<void> check_opened(const std::string& name, int fd) const;
  void forget(const std::string& name);

 private:
  Result<void> hold(const std::string& name, bool is_new);
  Result<void> check_owner(const os::Fd& folder, const std::string& name, uid_t owner, bool is_new);

  std::shared_ptr<const os::Fd> directory_;  // owned by the storage, its files, and this object
  // Guards the members below. No file operation runs under the mutex.
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const os::Fd>, std::less<>>
      held_;  // each owned by this object and by pending calls
  // The owner of files that this process makes below the directory. May differ from the user of the process: an NFS
  // server may map users (root squash), and a mount may give all files to one user.
  std::optional<uid_t> own_user_;
};

}  // namespace cairn::storage

// HeldFolders: the folders of a directory that this process made or joined, each held by a descriptor, so that another
// user who may write to the directory can't put a folder of their own in the place of one.
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

  // Makes a folder that only this user may enter, and holds it. Its mode is 0700 whatever the umask is; a set-group-ID
  // bit and default ACLs that it inherits stay, for the files that are renamed out of it. kUnsafe if the folder was
  // replaced by another user's before it could be opened.
  Result<void> make(const std::string& name);
  // Holds a folder that is there. kNotFound if it is missing; kUnsafe if another user owns it, or it is a link.
  Result<void> join(const std::string& name);
  // Its descriptor; null if it is not held.
  std::shared_ptr<const os::Fd> find(std::string_view name) const;
  // Of a folder that is held: kNotFound if the name is gone, kUnsafe if another folder has it. Others pass.
  Result<void> check(const std::string& name) const;
  // The same for a folder of this name that `fd` has open.
  Result<void> check_opened(const std::string& name, int fd) const;
  void forget(const std::string& name);

 private:
  Result<void> hold(const std::string& name, bool is_new);
  Result<void> check_owner(const os::Fd& folder, const std::string& name, uid_t owner, bool is_new);

  std::shared_ptr<const os::Fd> directory_;  // owned by the storage, its files, and this
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const os::Fd>, std::less<>> held_;  // owned by this and calls under way
  // Who owns what this process makes here. Not always the process's own user: the server of a network file system may
  // map users (root squash), or a mount may give all files to one.
  std::optional<uid_t> own_user_;
};

}  // namespace cairn::storage

// lock_directory: the exclusive lock of a directory, which also excludes the clients of a network file system.
#pragma once

#include <cairn/result.h>

#include <chrono>
#include <memory>

#include "os/fd.h"
#include "storage/storage.h"

namespace cairn::storage {

// Locks kLockName in the directory. The file is made if it is missing, and removed when the lock is released. Null
// where the file system has no locks. kUnavailable if others have held the lock for `patience` and nothing has changed
// in the directory meanwhile; kUnsafe if the name belongs to something else than a regular file. The lock shares the
// descriptor of the directory.
Result<std::unique_ptr<StorageLock>> lock_directory(std::shared_ptr<const os::Fd> directory,
                                                    std::chrono::milliseconds patience);

}  // namespace cairn::storage

// lock_directory: the exclusive lock of a directory, which also excludes the clients of a network file system.
#pragma once

#include <cairn/result.h>

#include <chrono>
#include <memory>

#include "os/fd.h"
#include "os/parallel.h"
#include "storage/storage.h"

namespace cairn::storage {

// Locks kLockName in the directory. Makes the file if the file is missing; the release removes the file. Null if the
// file system has no locks. kUnavailable if another process or thread has held the lock for `patience` without a change
// in the directory, or for twenty times as long; kCancelled if `stop` is given, and set while another holds the lock;
// kUnsafe if the name belongs to a file that is not regular. The lock
// shares the descriptor of the directory.
Result<std::unique_ptr<StorageLock>> lock_directory(std::shared_ptr<const os::Fd> directory,
                                                    std::chrono::milliseconds patience,
                                                    const os::StopFlag* stop = nullptr);

}  // namespace cairn::storage

// Posix files: the readable and the writable file of PosixStorage.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "os/fd.h"
#include "storage/storage.h"

namespace cairn::storage {

// A new file `name` below the directory descriptor. Where direct I/O is refused it goes through the page cache.
Result<std::unique_ptr<WritableFile>> create_posix_file(int directory, const std::string& name, mode_t mode,
                                                        const CreateOptions& options);

// Takes over a descriptor that was opened for reading; refuses (kUnsafe) what is not a regular file.
Result<std::unique_ptr<ReadableFile>> adopt_posix_file(os::Fd fd, const std::string& name);

}  // namespace cairn::storage

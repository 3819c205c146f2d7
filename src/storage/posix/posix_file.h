// Posix files: the readable and the writable file of PosixStorage.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>

#include "os/fd.h"
#include "storage/posix/creation_mask.h"
#include "storage/posix/descriptor_cache.h"
#include "storage/posix/name_in_folder.h"
#include "storage/storage.h"

namespace cairn::storage {

struct Permissions {
  mode_t bits;
  CreationMask mask;
};

// Creates a file. If direct I/O is refused, writes go through the page cache. Errors report the file as `name`.
Result<std::unique_ptr<WritableFile>> create_posix_file(const NameInFolder& place, const std::string& name,
                                                        const Permissions& permissions, const CreateOptions& options);

// Opens a file by name for reading; `more_flags` are added to the flags of open(2). Called again for each reopening
// after the descriptor was closed.
using OpenForReading = std::function<Result<os::Fd>(int more_flags)>;

// A file opened at once, and reopened after `descriptors` has closed its descriptor. The reopened file must have the
// device, inode, size and times of the first opening; if not, reading fails with kUnavailable. A file that is not
// regular is refused with kUnsafe.
Result<std::unique_ptr<ReadableFile>> open_posix_file(const std::shared_ptr<DescriptorCache>& descriptors,
                                                      OpenForReading open, const std::string& name);

}  // namespace cairn::storage

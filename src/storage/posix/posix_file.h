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

// A new file. Where direct I/O is refused it goes through the page cache. Errors call it `name`.
Result<std::unique_ptr<WritableFile>> create_posix_file(const NameInFolder& place, const std::string& name,
                                                        const Permissions& permissions, const CreateOptions& options);

// Opens the file of one name for reading, with more flags of open(2) if need be; called again whenever its descriptor
// was closed meanwhile.
using OpenForReading = std::function<Result<os::Fd>(int more_flags)>;

// A file that is opened now, and again when `descriptors` closed it: then it must be the very same file, unchanged
// (device, inode, size, times), or reading fails with kUnavailable. Refuses (kUnsafe) what is not a regular file.
Result<std::unique_ptr<ReadableFile>> open_posix_file(const std::shared_ptr<DescriptorCache>& descriptors,
                                                      OpenForReading open, const std::string& name);

}  // namespace cairn::storage

// rename_exclusively: moves a file to a free name, by the best call of the file system.
#pragma once

#include <cairn/result.h>

#include "storage/posix/name_in_folder.h"

namespace cairn::storage {

// Fails with EEXIST if the name `to` is taken by a different file. On a file system that can't move a name without
// overwriting, `from` may stay as a second name of the file.
Result<void> rename_exclusively(const NameInFolder& from, const NameInFolder& to);

}  // namespace cairn::storage

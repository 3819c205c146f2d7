// rename_exclusively: gives a file a name that must be free, with whatever the file system has for that.
#pragma once

#include <cairn/result.h>

#include "storage/posix/name_in_folder.h"

namespace cairn::storage {

// EEXIST if the name is taken, unless it is this very file that has it.
// Where the name can't be moved but only be given, `from` may be left as a second one of the file.
Result<void> rename_exclusively(const NameInFolder& from, const NameInFolder& to);

}  // namespace cairn::storage

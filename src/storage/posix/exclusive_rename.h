// rename_exclusively: gives a file a name that must be free, with whatever the file system has for that.
#pragma once

#include <cairn/result.h>

#include <string>

namespace cairn::storage {

// Both names are below the directory descriptor. EEXIST if the name is taken, unless it is this very file that has it.
// Where the name can't be moved but only be given, `from` may be left as a second one of the file.
Result<void> rename_exclusively(int directory, const std::string& from, const std::string& to);

}  // namespace cairn::storage

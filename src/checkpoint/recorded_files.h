// The comparison of a directory in the form of torch_checkpointing with the record that Cairn's save left in it.
#pragma once

#include <cairn/result.h>

#include <vector>

#include "storage/storage.h"

namespace cairn::checkpointer {

// A problem for each recorded file that is missing, or that has another size; and for a record that can't be read.
// Empty for a directory without a record.
std::vector<Error> compare_recorded_files(const storage::Storage& storage);

}  // namespace cairn::checkpointer

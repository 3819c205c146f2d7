// A directory that is removed between its opening and the first file in it. cairn::prune() removes each directory that
// it has emptied. Nothing can be made in an open directory without a name: the calls fail with kNotFound.
#pragma once

#include <cairn/result.h>

namespace cairn::storage {

// Each try meets another removal. prune() removes only a directory from which it has removed a checkpoint.
inline constexpr int kTriesInRemovedMax = 16;

// Calls `work`, which makes or opens a directory and then makes a file or a folder in the directory. Calls again if the
// result is kNotFound. `work` may be called often, and undoes its failed try.
template <typename Work>
auto retry_in_removed_directory(Work work) {
  for (int tries = 1;; ++tries) {
    auto result = work();
    if (result || result.error().code() != ErrorCode::kNotFound || tries == kTriesInRemovedMax) return result;
  }
}

}  // namespace cairn::storage

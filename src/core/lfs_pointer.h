// lfs_pointer: the small text that Git LFS leaves in place of a file whose content was not fetched.
//
// Pure.
#pragma once

#include <cairn/result.h>

#include <optional>

#include "core/byte_source.h"

namespace cairn {

// The error for a file that is a pointer of Git LFS; nullopt for all other files, and for one that can't be read.
std::optional<Error> lfs_pointer_error(const ByteSource& file);

}  // namespace cairn

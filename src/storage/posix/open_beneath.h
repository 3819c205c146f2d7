// open_beneath: open(2) for untrusted names: below one directory and through no link.
#pragma once

#include <string>

namespace cairn::storage {

// As openat(2): returns the new descriptor, or -1 with errno; ELOOP or EXDEV if a part of the name is a link. `name`
// must have passed check_name().
int open_beneath(int directory, const std::string& name, int flags);

}  // namespace cairn::storage

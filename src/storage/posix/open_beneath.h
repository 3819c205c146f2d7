// open_beneath: open(2) for a name that comes from outside: below one directory and through no link.
#pragma once

#include <string>

namespace cairn::storage {

// As openat(2): the new descriptor, or -1 and errno; ELOOP or EXDEV if a link is in the way. `name` has passed
// check_name().
int open_beneath(int directory, const std::string& name, int flags);

}  // namespace cairn::storage

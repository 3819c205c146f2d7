// return_freed_memory: gives the pages of freed small blocks back to the kernel, where the C library can.
#pragma once

#if defined(__GLIBC__) || __has_include(<gnu/libc-version.h>)
#include <malloc.h>
#endif

namespace cairn::os {

// For a caller that has freed hundreds of megabytes in blocks below the size that malloc maps on its own: malloc keeps
// such blocks, and the peak of the process would be the sum of what its phases need. Takes about a second for ten
// gigabytes. Safe to call from several threads.
inline void return_freed_memory() {
#if defined(__GLIBC__)
  (void)malloc_trim(0);
#endif
}

}  // namespace cairn::os

// system_page_bytes: the size of a page of memory on the running system: 4 KiB on x86-64; 4, 16 or 64 KiB on aarch64.
//
// Addresses for munmap and madvise are multiples of this size, and the kernel counts in such pages. The alignment of
// direct I/O and of Cairn's files is os::kPageBytes on every system.
#pragma once

#include <unistd.h>

#include <cstdint>

namespace cairn::os {

inline std::uint64_t system_page_bytes() noexcept { return static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)); }

}  // namespace cairn::os

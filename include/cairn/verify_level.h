// Verify: the bytes that a load checks.
#pragma once

#include <cstdint>

namespace cairn {

enum class Verify : std::uint8_t {
  kNeeded,  // check every byte read; in files without Cairn's checksums, only records that are read whole
  kFull,    // check every byte; in files without Cairn's checksums, read records whole to check them
  kNone,    // trust the storage
};

}  // namespace cairn

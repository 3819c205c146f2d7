// Which of the bytes that a load reads are checked.
#pragma once

#include <cstdint>

namespace cairn {

enum class Verify : std::uint8_t {
  kNeeded,  // check every byte that is read; records of files without Cairn's checksums, if they are read whole
  kFull,    // such records are read whole so that they can be checked
  kNone,    // trust the storage
};

}  // namespace cairn

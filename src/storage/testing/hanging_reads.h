// HangingReads: reads of this process that hang like reads from an unresponsive file server. For tests.
#pragma once

#include <string>

namespace cairn::storage {

// While the object lives, a read of a file whose path ends with `suffix` hangs. The destructor lets the reads go on. At
// most one object at a time.
class HangingReads {
 public:
  explicit HangingReads(std::string suffix);
  ~HangingReads();
  HangingReads(const HangingReads&) = delete;
  HangingReads& operator=(const HangingReads&) = delete;
};

}  // namespace cairn::storage

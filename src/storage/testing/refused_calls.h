// Refused system calls: simulates a file system, kernel or container filter without certain calls. For tests.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace cairn::storage {

struct RefusedCall {
  long number = 0;  // of the system call
  int error = 0;    // errno of the refused call
  // Refuse only calls with one of `bits` in the argument of the given index (0 to 5); nullopt: refuse all calls.
  std::optional<unsigned> argument = std::nullopt;
  std::uint32_t bits = UINT32_MAX;
};

// Runs `work` on a new thread; the kernel refuses the thread's listed calls. False if the kernel has no filters.
bool run_with_refused(const std::vector<RefusedCall>& calls, const std::function<void()>& work);

}  // namespace cairn::storage

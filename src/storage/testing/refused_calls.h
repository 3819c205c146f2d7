// Refused system calls: what a file system, a kernel or the filter of a container does not know. For tests.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace cairn::storage {

struct RefusedCall {
  long number = 0;  // of the system call
  int error = 0;    // errno that it ends with
  // Only if this argument (0 to 5) has one of these bits; nullopt: always.
  std::optional<unsigned> argument = std::nullopt;
  std::uint32_t bits = UINT32_MAX;
};

// Runs `work` on a thread of its own in which these calls are refused by the kernel. False if there are no filters
// here.
bool run_with_refused(const std::vector<RefusedCall>& calls, const std::function<void()>& work);

}  // namespace cairn::storage

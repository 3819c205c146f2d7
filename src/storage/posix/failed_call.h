// The error of a failed system call.
#pragma once

#include <cairn/result.h>

#include <cerrno>
#include <string>
#include <string_view>

namespace cairn::storage {

// For a call that has just set errno: "`action` failed", for the file `name`.
inline Error failed(std::string_view action, std::string_view name) {
  return Error::from_errno(errno, std::string(action) + " failed").file(name);
}

}  // namespace cairn::storage

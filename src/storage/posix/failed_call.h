// The error of a failed system call.
#pragma once

#include <cairn/result.h>

#include <cerrno>
#include <string>
#include <string_view>

namespace cairn::storage {

// "`action` failed", for the file `name`. Without `error`, for a call that has just set errno.
inline Error failed(std::string_view action, std::string_view name, int error = errno) {
  return Error::from_errno(error, std::string(action) + " failed").file(name);
}

}  // namespace cairn::storage

// real_path: a path without links, equal for most names of one file.
#pragma once

#include <chrono>
#include <string>

namespace cairn::os {

// The absolute path of `path` without links, "." and "..". The last parts need not exist. If the storage does not
// answer within `limit` or fails, returns the absolute form of `path` with its links. The URL of a bucket as it is.
std::string real_path(const std::string& path, std::chrono::milliseconds limit);

}  // namespace cairn::os

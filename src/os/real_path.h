// What the names of one file have in common.
#pragma once

#include <chrono>
#include <string>

namespace cairn::os {

// The absolute path of `path` without links, "." and "..". Its last parts need not exist. If the storage does not
// answer within `limit`, or refuses to: the absolute path as it was given.
std::string real_path(const std::string& path, std::chrono::milliseconds limit);

}  // namespace cairn::os

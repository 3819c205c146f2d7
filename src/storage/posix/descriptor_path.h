// descriptor_path: the path of an open file or directory, for the texts of errors.
#pragma once

#include <filesystem>

namespace cairn::storage {

// The present absolute path, from /proc; empty if /proc is missing. Never for opening a file: the path may lead to a
// different file by then.
std::filesystem::path descriptor_path(int fd);

}  // namespace cairn::storage

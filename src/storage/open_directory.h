// The directories that a storage can be opened on, and the only place that knows which kind of storage that is.
#pragma once

#include <cairn/result.h>
#include <sys/types.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "storage/storage.h"

namespace cairn::storage {

// Opens `directory` (a link to one is followed); kNotFound if it is missing. Files follow `umask`, or that of the
// process.
Result<std::unique_ptr<Storage>> open_directory(const std::filesystem::path& directory,
                                                std::optional<mode_t> umask = std::nullopt);
// The same, making it and its parents if need be.
Result<std::unique_ptr<Storage>> make_directory(const std::filesystem::path& directory,
                                                std::optional<mode_t> umask = std::nullopt);

// The directories in `root`, links to directories among them. Nullopt if there is no `root`; kInvalidArgument if it is
// not a directory.
Result<std::optional<std::vector<std::filesystem::path>>> directories_in(const std::filesystem::path& root);

}  // namespace cairn::storage

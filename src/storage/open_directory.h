// Opening and making the directory of a checkpoint, which may be the URL of a prefix in a bucket (cairn/bucket_url.h).
// Only open_directory.cc names the kind of storage behind a directory.
//
// A prefix of a bucket is there while an object is below it: it is opened without a look at the bucket, and not made.
#pragma once

#include <cairn/result.h>
#include <sys/types.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "storage/storage.h"

namespace cairn::storage {

// Opens `directory`, following links; kNotFound if `directory` is missing. New files follow `umask`; nullopt: the umask
// of the process.
Result<std::unique_ptr<Storage>> open_directory(const std::filesystem::path& directory,
                                                std::optional<mode_t> umask = std::nullopt);
// As open_directory, after making `directory` and its parents if they are missing.
Result<std::unique_ptr<Storage>> make_directory(const std::filesystem::path& directory,
                                                std::optional<mode_t> umask = std::nullopt);

// The absolute path of a directory, which may be missing, with the links followed and without a "/" at the end. The URL
// of a bucket as it is, without a "/" at the end.
std::filesystem::path resolved(const std::filesystem::path& directory);

// The directories in `root`, including links to directories and links to nothing, which may have led to directories.
// Nullopt if `root` is missing; kInvalidArgument if `root` is not a directory.
Result<std::optional<std::vector<std::filesystem::path>>> directories_in(const std::filesystem::path& root);

// The names of the directories in `root` that begin with `prefix`, sorted, without links. Looks at no other entry: none
// of them can fail or delay the call. Empty if `root` can't be listed.
std::vector<std::string> directories_named(const std::filesystem::path& root, std::string_view prefix);

}  // namespace cairn::storage

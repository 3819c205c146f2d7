// The URL of a prefix in a bucket, in place of a directory: s3://bucket/prefix and gs://bucket/prefix.
//
// A function that takes the directory of a checkpoint, as a std::filesystem::path, takes such a URL too. The path keeps
// the URL as it is, with both slashes; path / name and path.parent_path() work within the prefix. The functions of
// std::filesystem that look at a file system, and those that make a path absolute or normal, do not know URLs.
#pragma once

#include <filesystem>

namespace cairn {

// Whether `place` begins as the URL of a bucket.
bool is_bucket_url(const std::filesystem::path& place);

// The absolute path of a directory, with its links; the URL of a bucket as it is. The path as it is if the process has
// no working directory.
std::filesystem::path absolute_place(const std::filesystem::path& place);

}  // namespace cairn

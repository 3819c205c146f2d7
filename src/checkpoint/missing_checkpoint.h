// missing_checkpoint: the error about a directory without a checkpoint.
#pragma once

#include <cairn/result.h>

#include <filesystem>
#include <string>

namespace cairn::checkpointer {

// Whether `error`, of opening the checkpoint in `directory`, means that `directory` holds no checkpoint: the directory
// or the metadata is missing, or the directory is a file.
bool means_no_checkpoint(const Error& error, const std::filesystem::path& directory, const std::string& metadata_name);

// kNotFound with the errno of `error`; the text names the case. If directories in `directory` hold checkpoints,
// Error::actual names some of the directories, in the order of the numbers in the names; a binding can render
// Error::actual in its own words. If `directory` is missing, the text names checkpoints beside `directory`. The search
// looks at a bounded number of directories.
Error missing_checkpoint(const Error& error, const std::filesystem::path& directory, const std::string& metadata_name);

}  // namespace cairn::checkpointer

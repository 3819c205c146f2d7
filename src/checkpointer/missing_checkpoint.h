// missing_checkpoint: the error about a directory without a checkpoint.
#pragma once

#include <cairn/error.h>

#include <filesystem>
#include <string>

namespace cairn::checkpointer {

// Whether `error`, of opening the checkpoint in `directory`, means that there is none: the directory or the metadata is
// missing, or the directory is a file.
bool means_no_checkpoint(const Error& error, const std::filesystem::path& directory, const std::string& metadata_name);

// kNotFound with the errno of `error`: says which of these it is. If directories in `directory`, or beside it where it
// is missing, hold checkpoints, some of these are named, in the order of the numbers in their names: in the first case
// as what was found (Error::actual), so that another language may put it in its own words. A bounded number of
// directories is looked at.
Error missing_checkpoint(const Error& error, const std::filesystem::path& directory, const std::string& metadata_name);

}  // namespace cairn::checkpointer

// The checkpoints of a folder: time, size, contents, and a mark on the newest.
#pragma once

#include <filesystem>

#include "outcome.h"

namespace cairn::cli {

bool has_metadata(const std::filesystem::path& directory);
// Whether the directory has a metadata.pkl, as those of torch_checkpointing have.
bool has_item_metadata(const std::filesystem::path& directory);
// Whether `path` is a safetensors file, or a directory that holds one.
bool has_safetensors(const std::filesystem::path& path);

// Lists the checkpoints one level below `folder`, and the models that Cairn has saved there. Names are sorted with
// their numbers as numbers (natural_order.h). States and the newest are those of cairn::checkpoints(). A directory with
// data files but without `.metadata` is listed as incomplete. The exit code is kUnreadable if a checkpoint can't be
// read, or if the folder has no checkpoint.
Outcome list_folder(const std::filesystem::path& folder, bool json);

}  // namespace cairn::cli

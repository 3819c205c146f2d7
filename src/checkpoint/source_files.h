// source_files: the files of an open checkpoint, which a copy of its content must not replace.
#pragma once

#include <cairn/checkpoint.h>

#include <filesystem>
#include <optional>
#include <vector>

namespace cairn::checkpointer {

// Data files, metadata and the index of a model, whether they exist or not.
std::vector<std::filesystem::path> source_files(const Checkpoint& source);

// The file of the source that `target` is, by whatever path. Calls into the storages of both.
std::optional<std::filesystem::path> source_file_at(const Checkpoint& source, const std::filesystem::path& target);

}  // namespace cairn::checkpointer

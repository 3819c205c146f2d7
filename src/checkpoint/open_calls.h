// Open calls: open on any Storage. The public functions call them with a POSIX directory.
#pragma once

#include <cairn/checkpoint.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "storage/operation_watch.h"
#include "storage/storage.h"

namespace cairn::checkpointer {

// What is decoded of a `.metadata` with a compact catalog: everything, or what each load needs.
enum class Decoding : std::uint8_t { kWhole, kWanted };

// As cairn::open, or with kWanted as cairn::open_to_load.
Result<Checkpoint> open_in(std::unique_ptr<storage::Storage> storage,
                           const std::string& metadata_name = std::string(kMetadataName),
                           Decoding decoding = Decoding::kWhole);

// Opens a directory; kNotFound if the directory is missing.
using OpenDirectory = std::function<Result<std::unique_ptr<storage::Storage>>(const std::filesystem::path&)>;
// As open_in, with storages of `open_directory`.
Result<Checkpoint> open_with(const OpenDirectory& open_directory, const std::filesystem::path& directory,
                             const std::string& metadata_name = std::string(kMetadataName),
                             Decoding decoding = Decoding::kWhole);
// Opens directories of a file system; the calls into the directories are pending calls of `operations`.
OpenDirectory watched_directories(std::shared_ptr<storage::OperationWatch> operations);

}  // namespace cairn::checkpointer

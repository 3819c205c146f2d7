// Save calls: save and the steps of a save on any Storage. The public functions call them with a POSIX
// directory.
#pragma once

#include <cairn/checkpoint.h>
#include <cairn/save.h>

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "save/save_worker.h"

namespace cairn::checkpointer {

// A directory of a file system. Opening creates a missing directory.
SaveDirectory made_directory(const std::filesystem::path& directory);

// As cairn::save, but `options.checkpoint_id` is recorded unchanged, also if empty.
Result<SaveReport> save_into(const SaveDirectory& directory, const StateDict& state, const SaveOptions& options);

// As SaveClaim::make and RankShare::write.
Result<SaveClaim> claim_in(const SaveDirectory& directory, const SaveOptions& options);
Result<RankShare> write_share_in(const SaveDirectory& directory, std::string_view ticket, std::uint32_t rank,
                                 const StateDict& state, const SaveOptions& options);

}  // namespace cairn::checkpointer

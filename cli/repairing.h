// `cairn repair`: rebuilds lost or broken metadata, and removes the files of dead saves.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "outcome.h"

namespace cairn::cli {

struct RepairingOptions {
  bool partial = false;
  std::string save = {};  // an id
  std::optional<std::uint32_t> rank = {};
};

// Like cairn::repair(). Returns kCheckFailed if the checkpoint is not complete after the repair, and kUnreadable if the
// system prevents the repair, or the removal of a dead save.
Outcome repair(const std::filesystem::path& directory, const RepairingOptions& options, bool dry_run, bool as_json);

}  // namespace cairn::cli

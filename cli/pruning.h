// `cairn prune` and `cairn rm`: remove checkpoints.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "outcome.h"

namespace cairn::cli {

// As the user writes them.
struct PruningOptions {
  std::optional<std::uint64_t> keep_last = {};
  std::optional<std::uint64_t> keep_every = {};  // steps
  std::string keep_every_time = {};              // a duration; empty: not given
  std::vector<std::string> keep_best = {};       // METRIC:min, METRIC:max, METRIC:min:3
  std::string newer_than = {};                   // a duration; empty: not given
  bool adopt = false;
};

// Like cairn::prune(). Returns kUsage for a rule that is none, and kUnreadable if a checkpoint, or a file of it, could
// not be removed.
Outcome prune(const std::filesystem::path& root, const PruningOptions& options, bool dry_run, bool as_json);

// Goes on with the next directory after an error, and then returns kUnreadable.
Outcome remove(const std::vector<std::filesystem::path>& directories, bool dry_run, bool as_json);

}  // namespace cairn::cli

// `cairn diff`: two checkpoints, key by key.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "outcome.h"

namespace cairn::cli {

struct ComparisonOptions {
  std::optional<double> tolerance = {};
  bool ignore_dtype = false;
  std::vector<std::string> patterns = {};  // of keys; empty: all keys
  bool json = false;
  bool follow_links = false;
};

// Returns kCheckFailed if the checkpoints differ, and kDiffTrouble after any failure, as diff(1) does. Ctrl-C ends the
// process at once.
Outcome compare(const std::filesystem::path& a, const std::filesystem::path& b, const ComparisonOptions& options);

}  // namespace cairn::cli

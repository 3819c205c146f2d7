// `cairn inspect`: a checkpoint's keys with shape, dtype, bytes, chunks and files, and its short values.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "outcome.h"

namespace cairn::cli {

struct InspectionOptions {
  bool json = false;
  std::vector<std::string> patterns = {};  // shows the keys that match a pattern (cairn/catalog.h); empty: every key
  std::optional<std::size_t> depth = {};   // levels of the tree; a line counts its hidden keys. Not with `json`
};

// A value that can't be read is shown as unreadable, the rest is still shown, and the exit code is kUnreadable. The
// exit code is kCheckFailed if a pattern matches no key.
Outcome inspect(const std::filesystem::path& directory, const InspectionOptions& options);

}  // namespace cairn::cli

// `cairn cat`: the value or the tensor under a key.
#pragma once

#include <filesystem>
#include <string>

#include "outcome.h"

namespace cairn::cli {

struct KeyContentOptions {
  std::filesystem::path npy = {};  // not empty: export the tensor to this file
  bool overwrite = false;          // replace an existing file
  bool json = false;
  bool follow_links = false;
};

// Returns kCheckFailed, with near keys, if the checkpoint lacks the key, and for damage. Ctrl-C ends the process at
// once; an export removes its unfinished file first, and the outcome names the signal.
Outcome show_key(const std::filesystem::path& directory, const std::string& key, const KeyContentOptions& options);

}  // namespace cairn::cli

// `cairn convert` and `cairn reshard`: a checkpoint in another format, or with other keys, dtypes or files.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "outcome.h"

namespace cairn::cli {

// As the words of the command line.
struct ConversionOptions {
  std::string to = {};  // "dcp", "torch", "safetensors"; empty: as the target's name says
  std::vector<std::string> keys = {};
  std::vector<std::string> exclude = {};
  std::vector<std::string> renames = {};  // OLD=NEW
  std::vector<std::string> dtypes = {};   // "bf16", "float32", GLOB=DTYPE; empty: unchanged
  std::string max_shard_size = {};        // "5GB"; empty: one file
  std::size_t file_count = 1;
  bool overwrite = false;
  bool plain = false;
  bool allow_pickle = false;
  bool follow_links = false;
  bool json = false;
};

// SIGINT and SIGTERM end the conversion without a trace of the target, and the outcome names the signal; a second
// signal ends the process at once.
Outcome convert(const std::filesystem::path& source, const std::filesystem::path& target,
                const ConversionOptions& options);

}  // namespace cairn::cli

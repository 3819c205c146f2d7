// MetadataReplacement: puts a new metadata file in place of a lost or broken one.
#pragma once

#include <cairn/result.h>

#include <filesystem>
#include <string>
#include <vector>

#include "storage/storage.h"

namespace cairn::checkpointer {

struct MetadataReplacement {
  std::filesystem::path directory;
  std::string name;       // of the metadata file
  std::string bytes;      // new
  std::string old_bytes;  // of the broken file; empty: the file is renamed, unless `had_file` is false
  bool had_file = false;
  std::vector<std::string> files = {};  // the data files that the new metadata names
  bool keeps_time = false;  // gives the metadata the time of its youngest data file, by which latest() orders it
};

struct Replaced {
  std::string damaged_name;  // of the broken file
  std::vector<std::string> warnings;
};

// Call under the directory's lock `lock`, which is null on a file system without locks. kUnavailable if a save into the
// directory is under way.
Result<Replaced> replace_metadata(storage::Storage& storage, const MetadataReplacement& replacement,
                                  const storage::StorageLock* lock);

}  // namespace cairn::checkpointer

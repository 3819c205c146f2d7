// MetadataState: whether a metadata file is good, and what is left of a broken one.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/manifest/commit_record.h"
#include "storage/storage.h"

namespace cairn::checkpointer {

// A file that incomplete metadata names, and that never exists: to readers the checkpoint lacks a data file.
inline constexpr std::string_view kLostName = "__lost.distcp";

struct MetadataState {
  enum class Kind : std::uint8_t {
    kGood,
    kLost,      // there is no such file
    kRemoved,   // a removal of the checkpoint has begun, and was interrupted
    kBroken,    // can't be decoded
    kDamaged,   // a part that a load does without is damaged: `catalog` and `record` are intact
    kDataLost,  // intact, but data files are missing or damaged: `file_faults`
  };

  Kind kind = Kind::kLost;
  std::optional<Error> fault = {};                    // of kBroken and kDamaged
  std::string bytes = {};                             // of the file; empty if it is too large
  std::optional<manifest::CommitRecord> record = {};  // intact, also of a broken file
  Result<std::string> notes = std::string();          // intact, also of a broken file
  Catalog catalog = {};                 // unless kLost, kRemoved or kBroken; numbered as the files of `record`
  std::vector<Error> file_faults = {};  // each with the name of its data file
};

// Whether a repair with `partial` wrote the record.
bool is_partial(const manifest::CommitRecord& record);

// kUnsupported if a later version of Cairn wrote the metadata, kUnavailable if the system does not let a file be read.
Result<MetadataState> read_metadata_state(const std::filesystem::path& directory, const storage::Storage& storage,
                                          const std::string& name);

}  // namespace cairn::checkpointer

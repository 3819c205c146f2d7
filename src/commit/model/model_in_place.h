// ModelInPlace: the safetensors model of a directory at a moment, enough to recognise a change.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "commit/lease.h"
#include "format/safetensors/index.h"
#include "storage/storage.h"

namespace cairn::commit {

// The file in a save's folder that says that a save of shards, which has no index, is committed. The text is the list
// of the replaced files (model_leftovers.h).
inline constexpr std::string_view kCommittedName = "committed";

// The identity of `model.safetensors.index.json` at a moment: enough to recognise a change.
struct IndexInPlace {
  bool present = false;
  std::uint64_t size = 0;
  std::uint32_t checksum = 0;
  bool readable = false;  // `index` is the file's content
  safetensors::Index index;

  bool same_as(const IndexInPlace& other) const {
    return present == other.present && size == other.size && checksum == other.checksum;
  }
};
// An index that is damaged is present and not readable. An error if the directory's answer is not certain.
Result<IndexInPlace> read_index_in_place(const storage::Storage& storage);

// A text that changes with the file: of the size, the modification time and a checksum of the first 4 KiB.
Result<std::string> stamp_of(const storage::Storage& storage, const std::string& name);

struct StampedFile {
  std::string name;
  std::string stamp;  // empty for a link, and for any other file that is not regular

  friend bool operator==(const StampedFile&, const StampedFile&) = default;
};

struct ModelInPlace {
  IndexInPlace index;
  std::string index_stamp;  // empty without an index, and if the index is a link
  // Files that the index names, and files with the name of a model's file. Sorted by name.
  std::vector<StampedFile> files;
  std::vector<std::string> foreign;  // all other files `*.safetensors`
  std::string dcp_file;              // a file of a DCP checkpoint; empty if there is none
  bool has_other_saves = false;      // a save other than `mine` has a private folder

  bool same_as(const ModelInPlace& other) const { return index.same_as(other.index) && files == other.files; }
};

// Leaves out the files of the save `mine` and of saves in flight. `extra_name` counts as the name of a model's file.
Result<ModelInPlace> look_at_model(const storage::Storage& storage, const SaveId& mine, std::string_view extra_name);

// The ids of the saves, other than `mine`, that have a private folder.
std::vector<SaveId> model_saves_with_folder(const std::vector<storage::ListedFile>& files, const SaveId& mine);

}  // namespace cairn::commit

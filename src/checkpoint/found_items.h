// find_items: the files of a directory of torch_checkpointing, and the item and rank of each.
//
// `metadata.pkl` names the items whose tensors several ranks share, and their files. The files of all other items have
// the default names `<item>_<rank>.pt`, or beside a metadata.pkl end in `.json`: nothing else tells their item. Reads
// metadata.pkl and the list of the directory, and opens no other file.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "format/torch_checkpointing/saved_metadata.h"
#include "storage/storage.h"

namespace cairn::checkpointer {

struct FoundItemFile {
  std::uint32_t rank = 0;
  std::string name;
  torch_checkpointing::FileForm form = torch_checkpointing::FileForm::kTorch;
};

struct FoundItem {
  std::string name;
  std::optional<std::size_t> saved;  // index into SavedMetadata::items
  std::vector<FoundItemFile> files;  // ascending by rank; of files that are missing, none
};

struct FoundItems {
  std::optional<torch_checkpointing::SavedMetadata> metadata;
  std::uint32_t metadata_checksum = 0;
  std::vector<FoundItem> items;       // those of the metadata, then the others by name
  std::vector<std::string> left_out;  // files of no known item
};

// Whether the directory holds metadata.pkl of torch_checkpointing, and no trace of a DCP checkpoint or of a safetensors
// model; a model beside metadata.pkl of torch_checkpointing consists of items. Without a metadata.pkl the names alone
// must tell: the directory holds files `<item>_<rank>.pt` of the ranks 0 to N, and nothing else but hidden files.
bool holds_torch_checkpointing(const storage::Storage& storage);

// kCorrupt and others as of read_saved_metadata(), with the name of the file. kUnsafe for a file outside the directory.
Result<FoundItems> find_items(const storage::Storage& storage);

}  // namespace cairn::checkpointer

// open_item: opens a file of an item of torch_checkpointing, for the first time and again.
//
// Follows no link.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "data_file/data_file.h"
#include "format/safetensors/header.h"
#include "format/torch_checkpointing/saved_metadata.h"
#include "storage/storage.h"

namespace cairn::checkpointer {

// What open_again() needs of a file.
struct FoundPlace {
  std::string item;
  torch_checkpointing::FileForm form = torch_checkpointing::FileForm::kTorch;
  std::uint64_t bytes = 0;
  std::uint32_t checksum = 0;                         // OpenedItem::checksum
  std::shared_ptr<data_file::DataFile::Parts> parts;  // owned by the place and by the file's DataFiles; may be null
};

struct OpenedItem {
  std::unique_ptr<data_file::DataFile> file;
  std::optional<safetensors::Header> header;  // of a safetensors file
  // Of a file of torch.save: of the pickle and of the records' names, sizes and CRCs. Of a safetensors file: of the
  // header. 0 for the other forms.
  std::uint32_t checksum = 0;
};
Result<OpenedItem> open_item(const storage::Storage& storage, const std::string& name, const std::string& item,
                             torch_checkpointing::FileForm form);

// kCorrupt if the file is another one than at the opening of the directory.
Result<std::unique_ptr<data_file::DataFile>> open_again(const storage::Storage& storage, const std::string& name,
                                                        const FoundPlace& place);

}  // namespace cairn::checkpointer

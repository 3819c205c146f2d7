#include "checkpoint/item_place.h"

#include <utility>

#include "core/checksum.h"
#include "format/torch_file/state_file.h"

namespace cairn::checkpointer {

using data_file::DataFile;
using torch_checkpointing::FileForm;

Result<OpenedItem> open_item(const storage::Storage& storage, const std::string& name, const std::string& item,
                             FileForm form) {
  OpenedItem opened;
  if (form == FileForm::kSafetensors) {
    CAIRN_TRY_ASSIGN(DataFile::OpenedSafetensors file, DataFile::open_safetensors(storage, name, false));
    opened.file = std::move(file.file);
    opened.header = std::move(file.header);
    return opened;
  }
  CAIRN_TRY_ASSIGN(opened.file, form == FileForm::kTorch ? DataFile::open_torch_item(storage, name, item)
                                                         : DataFile::open_bytes(storage, name));
  return opened;
}

std::uint32_t content_checksum(const DataFile& file) {
  return file.state_file() != nullptr ? file.state_file()->checksum() : 0;
}

Result<std::unique_ptr<DataFile>> open_again(const storage::Storage& storage, const std::string& name,
                                             const ItemPlace& place) {
  Result<OpenedItem> opened = open_item(storage, name, place.item, place.form);
  if (!opened) return std::move(opened).error().file(name).while_doing("opening a file of the checkpoint again");
  const auto text = [](std::uint64_t bytes, std::uint32_t checksum) {
    return std::to_string(bytes) + " bytes, " + crc_text(checksum);
  };
  const std::string found = text(opened->file->bytes().size(), content_checksum(*opened->file));
  const std::string expected = text(place.bytes, place.checksum);
  if (found != expected) {
    return Error(ErrorCode::kCorrupt, "the file was changed after the directory was opened")
        .file(name)
        .expected(expected)
        .actual(found);
  }
  opened->file->set_parts(place.parts);
  return std::move(opened->file);
}

}  // namespace cairn::checkpointer

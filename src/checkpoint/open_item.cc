#include "checkpoint/open_item.h"

#include <span>
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
    // The reader of the header has bounded its size.
    CAIRN_TRY_ASSIGN(const DataFile::Item bytes, opened.file->read_item({0, 0, opened.header->data_offset}, false));
    opened.checksum = crc32(std::as_bytes(std::span(bytes.bytes)));
    return opened;
  }
  CAIRN_TRY_ASSIGN(opened.file, form == FileForm::kTorch ? DataFile::open_torch_item(storage, name, item)
                                                         : DataFile::open_bytes(storage, name));
  if (opened.file->state_file() != nullptr) opened.checksum = opened.file->state_file()->checksum();
  return opened;
}

Result<std::unique_ptr<DataFile>> open_again(const storage::Storage& storage, const std::string& name,
                                             const FoundPlace& place) {
  Result<OpenedItem> opened = open_item(storage, name, place.item, place.form);
  if (!opened) return std::move(opened).error().file(name).while_doing("opening a file of the checkpoint again");
  const auto text = [](std::uint64_t bytes, std::uint32_t checksum) {
    return std::to_string(bytes) + " bytes, " + crc_text(checksum);
  };
  const std::string found = text(opened->file->bytes().size(), opened->checksum);
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

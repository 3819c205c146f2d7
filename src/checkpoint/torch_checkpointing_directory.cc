#include "checkpoint/torch_checkpointing_directory.h"

#include <cerrno>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_impl.h"
#include "checkpoint/found_items.h"
#include "checkpoint/item_catalog.h"
#include "checkpoint/listed_keys.h"
#include "checkpoint/open_item.h"
#include "core/checksum.h"
#include "data_file/data_file.h"
#include "format/json/json_value.h"

namespace cairn::checkpointer {
namespace {

using data_file::DataFile;
using torch_checkpointing::FileForm;

// A JSON item holds settings. A larger file is none.
constexpr std::uint64_t kJsonBytesMax = std::uint64_t{1} << 28;

// Of more files none stays open: the pickle of each takes memory.
constexpr std::size_t kKeptOpenMax = 64;

// The files of a directory and what they hold.
struct OpenedItems {
  std::vector<std::unique_ptr<DataFile>> files;  // null for those that were closed
  std::vector<FoundPlace> places;
  ItemCatalog::Content content;
  std::string identity;
};

class ItemOpener {
 public:
  ItemOpener(const storage::Storage& storage, const FoundItems& found)
      : storage_(storage), catalog_(found.metadata ? &*found.metadata : nullptr), checksum_(found.metadata_checksum) {}

  // A file of a subfolder may be missing: the catalog finds out whether a tensor is then missing, too.
  Result<void> add(const FoundItem& item, const FoundItemFile& file) {
    const auto explain = [&](Error error) {
      return std::move(error).file(file.name).while_doing("opening the file of rank " + std::to_string(file.rank) +
                                                          " for the item '" + item.name + "'");
    };
    Result<OpenedItem> opened = open_item(storage_, file.name, item.name, file.form);
    if (!opened && opened.error().error_number() == ENOENT) return {};
    if (!opened) return explain(std::move(opened).error());
    DataFile& data = *opened->file;
    if (auto added = add_content(item, file, *opened); !added) return explain(std::move(added).error());
    FoundPlace place{item.name, file.form, data.bytes().size(), opened->checksum, data.parts()};
    const std::string text =
        file.name + ' ' + std::to_string(place.bytes) + ' ' + std::to_string(place.checksum) + '\n';
    checksum_ = crc32(std::as_bytes(std::span(text)), checksum_);
    opened_.places.push_back(std::move(place));
    const bool is_closed = opened_.files.size() >= kKeptOpenMax && !catalog_.compares_with(data);
    opened_.files.push_back(is_closed ? nullptr : std::move(opened->file));
    return {};
  }

  // Call once, at the end.
  Result<OpenedItems> finish(const FoundItems& found) {
    CAIRN_TRY_ASSIGN(opened_.content, catalog_.finish(found.items));
    opened_.identity =
        "torch_checkpointing checkpoint of " + std::to_string(opened_.files.size()) + " files, " + crc_text(checksum_);
    if (opened_.files.size() > kKeptOpenMax) {
      for (std::unique_ptr<DataFile>& file : opened_.files) file.reset();
    }
    return std::move(opened_);
  }

 private:
  Result<void> add_content(const FoundItem& item, const FoundItemFile& file, const OpenedItem& opened) {
    switch (file.form) {
      case FileForm::kTorch: return catalog_.add_torch(file, *opened.file);
      case FileForm::kSafetensors: return catalog_.add_safetensors(item, file, *opened.header, *opened.file);
      case FileForm::kJson: return add_json(item, file, *opened.file);
      case FileForm::kRaw: return catalog_.add_bytes(item, file, *opened.file);
    }
    return {};
  }

  Result<void> add_json(const FoundItem& item, const FoundItemFile& file, const DataFile& data) {
    const std::uint64_t bytes = data.bytes().size();
    if (bytes > kJsonBytesMax) {
      return Error(ErrorCode::kUnsupported, "a JSON item that is larger than allowed")
          .expected("at most " + std::to_string(kJsonBytesMax) + " bytes")
          .actual(std::to_string(bytes));
    }
    CAIRN_TRY_ASSIGN(const DataFile::Item text, data.read_item({0, 0, bytes}, false));
    checksum_ = crc32(std::as_bytes(std::span(text.bytes)), checksum_);
    const Result<Value> value = json::read_json_value(text.bytes);
    if (value) return catalog_.add_json(item, file, *value, bytes);
    if (item.saved) return value.error();
    // Perhaps another program's file.
    catalog_.add_undecoded(item, file, bytes, value.error().what());
    return {};
  }

  const storage::Storage& storage_;
  ItemCatalog catalog_;
  std::uint32_t checksum_;
  OpenedItems opened_;
};

Result<OpenedItems> open_items(const storage::Storage& storage, const FoundItems& found) {
  ItemOpener opener(storage, found);
  for (const FoundItem& item : found.items) {
    for (const FoundItemFile& file : item.files) CAIRN_TRY(opener.add(item, file));
  }
  return opener.finish(found);
}

// Without metadata.pkl nothing tells the parts of a tensor from copies, and the values of one rank from those of all.
Result<void> check_puts_together(const FoundItems& found) {
  if (found.metadata) return {};
  for (const FoundItem& item : found.items) {
    if (item.files.empty() || item.files.back().rank == 0) continue;
    return Error(ErrorCode::kUnsupported,
                 "the files of several ranks can't be put together without the metadata.pkl that torch_checkpointing "
                 "writes if an item has a resharder. Open the file of one rank by its name")
        .expected("metadata.pkl, or the files of one rank")
        .actual(item.files.front().name + " and " + item.files.back().name);
  }
  return {};
}

void add_warnings(const FoundItems& found, const ItemCatalog::Content& content, std::vector<std::string>& warnings) {
  if (!found.left_out.empty()) {
    warnings.push_back("files of no known item of torch_checkpointing are left out: " + listed_keys(found.left_out));
  }
  std::vector<std::string> unread;
  for (const auto& [key, why] : content.unread) unread.push_back(key);
  if (!unread.empty()) {
    warnings.push_back("keys that no call reads, because their parts can't be put together: " + listed_keys(unread));
  }
}

}  // namespace

Result<Checkpoint> open_torch_checkpointing(std::unique_ptr<storage::Storage> storage) {
  CAIRN_TRY_ASSIGN(const FoundItems found, find_items(*storage));
  CAIRN_TRY(check_puts_together(found));
  CAIRN_TRY_ASSIGN(OpenedItems opened, open_items(*storage, found));
  if (opened.files.empty()) return Error(ErrorCode::kNotFound, "no file of an item in the directory");
  auto impl = std::make_unique<Checkpoint::Impl>();
  impl->storage = std::move(storage);
  impl->metadata_name = torch_checkpointing::kMetadataName;
  impl->identity = std::move(opened.identity);
  add_warnings(found, opened.content, impl->warnings);
  impl->catalog = std::move(opened.content.catalog);
  impl->held_values = std::move(opened.content.values);
  impl->unread_keys = std::move(opened.content.unread);
  impl->item_places = std::move(opened.places);
  for (std::unique_ptr<DataFile>& file : opened.files) impl->put_file(std::move(file));
  CAIRN_TRY(impl->catalog.index());
  return Checkpoint(std::move(impl));
}

Result<std::string> identity_of_torch_checkpointing(const storage::Storage& storage) {
  CAIRN_TRY_ASSIGN(const FoundItems found, find_items(storage));
  CAIRN_TRY_ASSIGN(OpenedItems opened, open_items(storage, found));
  return std::move(opened.identity);
}

}  // namespace cairn::checkpointer

// 1. Find the names of the files: from the index, or from the directory.
// 2. Open each file and read its header.
// 3. Put the boxes of each tensor together. The shape is the smallest that holds all of them; a load finds out whether
//    they tile it.
// 4. If there is an index, hold the tensors that were found against those that it names.
#include "checkpointer/safetensors_model.h"

#include <cairn/metadata_name.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "checkpointer/checkpoint_impl.h"
#include "commit/lease.h"
#include "core/checked.h"
#include "core/checksum.h"
#include "data_file/data_file.h"
#include "format/safetensors/header.h"
#include "format/safetensors/index.h"
#include "format/safetensors/sharding_info.h"

namespace cairn::checkpointer {
namespace {

using data_file::DataFile;

constexpr std::string_view kSuffix = ".safetensors";
constexpr std::uint64_t kIndexBytesMax = std::uint64_t{1} << 30;

// The names of the model's files, sorted, and of each tensor's file if an index names them.
struct ModelFiles {
  std::vector<std::string> names;
  std::optional<safetensors::Index> index;
};

bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

Result<std::vector<std::string>> names_in(const storage::Storage& storage) {
  CAIRN_TRY_ASSIGN(const std::vector<storage::ListedFile> files, storage.list());
  std::vector<std::string> names;
  for (const storage::ListedFile& file : files) {
    if (!file.is_folder && file.name.ends_with(kSuffix)) names.push_back(file.name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

// (1)
Result<ModelFiles> files_of_model(const storage::Storage& storage) {
  const std::string index_name(safetensors::kIndexName);
  Result<std::string> text = storage::read_small(storage, index_name, kIndexBytesMax, true);
  if (!text && text.error().code() != ErrorCode::kNotFound) return std::move(text).error();
  ModelFiles files;
  if (!text) {
    CAIRN_TRY_ASSIGN(files.names, names_in(storage));
    return files;
  }
  Result<safetensors::Index> index = safetensors::read_index(*text);
  if (!index) return std::move(index).error().file(index_name);
  for (const auto& [key, name] : index->files) {
    if (!is_plain_name(name)) {
      return Error(ErrorCode::kUnsafe, "the index names a file outside the directory")
          .key(key)
          .file(index_name)
          .actual(name);
    }
    files.names.push_back(name);
  }
  std::sort(files.names.begin(), files.names.end());
  files.names.erase(std::unique(files.names.begin(), files.names.end()), files.names.end());
  files.index = *std::move(index);
  return files;
}

// The catalog of a model, put together file by file.
class ModelCatalog {
 public:
  // Step 3, of the file that becomes the next of the catalog.
  Result<void> add(const std::string& name, const safetensors::Header& header) {
    const auto file = static_cast<std::uint32_t>(catalog_.files.size());
    catalog_.files.push_back(name);
    safetensors::SavedOffsets saved;
    for (const auto& [key, value] : header.metadata) {
      if (key != safetensors::kShardingInfoName) continue;
      Result<safetensors::SavedOffsets> read = safetensors::read_sharding_info(value);
      if (!read)
        return std::move(read).error().file(name).while_doing("reading the sharding info of a safetensors file");
      saved = *std::move(read);
    }
    for (const safetensors::Tensor& tensor : header.tensors) {
      const auto offsets = saved.find(tensor.name);
      const ItemLocation location{file, header.data_offset + tensor.begin, tensor.end - tensor.begin};
      Result<void> added = add_box(tensor, offsets == saved.end() ? nullptr : &offsets->second, location);
      if (!added) return std::move(added).error().key(tensor.name).file(name);
    }
    return {};
  }

  // Step 4.
  Result<void> hold_against(const safetensors::Index& index) const {
    for (const auto& [key, name] : index.files) {
      const auto found = places_.find(key);
      const bool is_there =
          found != places_.end() && catalog_.files[catalog_.tensors[found->second].locations[0].file] == name;
      if (!is_there)
        return Error(ErrorCode::kCorrupt, "the file lacks a tensor that the index names").key(key).file(name);
    }
    if (index.files.size() == catalog_.tensors.size()) return {};
    std::unordered_map<std::string_view, std::string_view, SeededHash> named(index.files.begin(), index.files.end());
    for (const CatalogTensor& tensor : catalog_.tensors) {
      if (named.contains(tensor.fqn)) continue;
      return Error(ErrorCode::kCorrupt, "a file of the model holds a tensor that the index does not name")
          .key(tensor.fqn)
          .file(catalog_.files[tensor.locations[0].file]);
    }
    return {};
  }

  Result<Catalog> take() {
    for (std::size_t i = 0; i < catalog_.tensors.size(); ++i) {
      catalog_.keys.push_back({true, static_cast<std::uint32_t>(i)});
    }
    for (const CatalogTensor& tensor : catalog_.tensors) {
      if (auto count = element_count(tensor.shape); !count) return std::move(count).error().key(tensor.fqn);
    }
    catalog_.format = CheckpointFormat::kSafetensors;
    return std::move(catalog_);
  }

 private:
  Result<void> add_box(const safetensors::Tensor& tensor, const Extents* offsets, const ItemLocation& location) {
    const auto [place, is_new] = places_.try_emplace(tensor.name, catalog_.tensors.size());
    const bool is_sharded = offsets != nullptr;
    if (!is_new && !(is_sharded && sharded_[place->second])) {
      return Error(ErrorCode::kCorrupt, "two files of the model hold the tensor: open one of the files alone");
    }
    if (is_new) {
      catalog_.tensors.push_back({tensor.name, tensor.dtype, Extents(tensor.shape.size(), 0), false, {}, {}});
      sharded_.push_back(is_sharded);
    }
    CatalogTensor& whole = catalog_.tensors[place->second];
    const Extents begin = is_sharded ? *offsets : Extents(tensor.shape.size(), 0);
    if (whole.dtype != tensor.dtype || whole.shape.size() != tensor.shape.size() ||
        begin.size() != tensor.shape.size()) {
      return Error(ErrorCode::kCorrupt, "the files of the model disagree about the type or dimensions of a tensor")
          .expected(std::string(name_of(whole.dtype)) + ", " + std::to_string(whole.shape.size()) + " dimensions")
          .actual(std::string(name_of(tensor.dtype)) + " " + to_string(tensor.shape) + " at " + to_string(begin));
    }
    for (std::size_t i = 0; i < begin.size(); ++i) {
      const std::optional<std::int64_t> end = checked_add(begin[i], tensor.shape[i]);
      if (!end) return Error(ErrorCode::kCorrupt, "a box beyond all shapes").actual(to_string(begin));
      whole.shape[i] = std::max(whole.shape[i], *end);
    }
    whole.boxes.insert(whole.boxes.end(), begin.begin(), begin.end());
    whole.boxes.insert(whole.boxes.end(), tensor.shape.begin(), tensor.shape.end());
    whole.locations.push_back(location);
    return {};
  }

  Catalog catalog_;
  std::unordered_map<std::string, std::size_t, SeededHash> places_;  // index in the catalog, by name
  std::vector<bool> sharded_;                                        // by index in the catalog
};

// Steps 2 to 4. The result lacks its storage.
Result<std::unique_ptr<Checkpoint::Impl>> read_files(const storage::Storage& storage, const ModelFiles& files) {
  auto impl = std::make_unique<Checkpoint::Impl>();
  ModelCatalog catalog;
  std::uint64_t bytes = 0;
  std::uint32_t checksum = 0;  // of the names, sizes and headers
  for (const std::string& name : files.names) {
    Result<DataFile::OpenedSafetensors> opened = DataFile::open_safetensors(storage, name);  // (2)
    if (!opened) return std::move(opened).error().file(name).while_doing("opening a safetensors file");
    CAIRN_TRY(catalog.add(name, opened->header));  // (3)
    const std::uint64_t size = opened->file->bytes().size();
    const std::string seen = name + ' ' + std::to_string(size) + ' ' + crc_text(opened->header.checksum) + '\n';
    checksum = crc32(std::as_bytes(std::span(seen)), checksum);
    bytes += size;
    impl->put_file(std::move(opened->file));
  }
  if (files.index) CAIRN_TRY(catalog.hold_against(*files.index));  // (4)
  CAIRN_TRY_ASSIGN(impl->catalog, catalog.take());
  impl->identity = std::to_string(files.names.size()) + " safetensors files of " + std::to_string(bytes) + " bytes, " +
                   crc_text(checksum);
  return impl;
}

Result<std::unique_ptr<Checkpoint::Impl>> read_model(const storage::Storage& storage, const std::string& only_file) {
  if (!only_file.empty()) return read_files(storage, {{only_file}, std::nullopt});
  CAIRN_TRY_ASSIGN(const ModelFiles files, files_of_model(storage));
  return read_files(storage, files);
}

}  // namespace

bool holds_model_alone(const storage::Storage& storage) {
  const Result<std::vector<storage::ListedFile>> files = storage.list();
  if (!files) return false;
  const auto is_of_dcp = [](const storage::ListedFile& file) {
    return file.name.ends_with(kMetadataName) || file.name.ends_with(".distcp") || commit::save_id_of_folder(file.name);
  };
  const auto is_of_model = [](const storage::ListedFile& file) {
    return !file.is_folder && (file.name == safetensors::kIndexName || file.name.ends_with(kSuffix));
  };
  return std::none_of(files->begin(), files->end(), is_of_dcp) &&
         std::any_of(files->begin(), files->end(), is_of_model);
}

Result<Checkpoint> open_safetensors(std::unique_ptr<storage::Storage> storage, const std::string& only_file) {
  CAIRN_TRY_ASSIGN(std::unique_ptr<Checkpoint::Impl> impl, read_model(*storage, only_file));
  impl->storage = std::move(storage);
  impl->metadata_name = only_file;
  CAIRN_TRY(impl->catalog.index());
  return Checkpoint(std::move(impl));
}

Result<std::string> identity_of_safetensors(const storage::Storage& storage, const std::string& only_file) {
  CAIRN_TRY_ASSIGN(const std::unique_ptr<Checkpoint::Impl> impl, read_model(storage, only_file));
  return impl->identity;
}

}  // namespace cairn::checkpointer

// 1. Find the names of the files (model_directory.h). Beside `model.safetensors`, of a save that has committed or of
//    another program, nothing shows which of two models is the model.
// 2. Open each file and read its header. With Cairn's index: hold the save of each file against the index. Without an
//    index: take the files of one whole set of one save (one_set()), because a save may be in flight or have been
//    killed (commit/model/model_commit.cc). A file that cannot be read and has the id of a save in its name may be a
//    rest of such a save, and is left out too. If a file is gone, a save has committed meanwhile: begin again.
// 3. Put the boxes of each tensor together. The shape is the smallest that holds all of them; a load finds out whether
//    they tile it.
// 4. If there is an index, compare its names with the tensors of the files. Cairn's index names all tensors. By the
//    index of another program a tensor has the elements of one file, and tensors without a name are left out.
#include "checkpoint/safetensors_model.h"

#include <algorithm>
#include <cerrno>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_impl.h"
#include "checkpoint/listed_keys.h"
#include "checkpoint/model_directory.h"
#include "commit/dcp_names.h"
#include "commit/job_identity.h"
#include "commit/model/model_files.h"
#include "core/checked.h"
#include "core/checksum.h"
#include "data_file/data_file.h"
#include "format/safetensors/checksums.h"
#include "format/safetensors/file_set.h"
#include "format/safetensors/header.h"
#include "format/safetensors/index.h"
#include "format/safetensors/sharding_info.h"

namespace cairn::checkpointer {
namespace {

using data_file::DataFile;
using model_directory::ModelFiles;

bool is_in_folder(std::string_view name) { return name.find('/') != std::string_view::npos; }

// The catalog of a model, put together file by file.
class ModelCatalog {
 public:
  // `index`: of the directory; null if there is none. Outlives the catalog.
  explicit ModelCatalog(const safetensors::Index* index) {
    const bool is_foreign = index != nullptr && index->save_id.empty();
    if (is_foreign) files_of_index_.insert(index->files.begin(), index->files.end());
  }

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
      if (offsets == saved.end() && lies_elsewhere(tensor.name, name)) {
        left_out_.push_back(tensor.name);
        continue;
      }
      const ItemLocation location{file, header.data_offset + tensor.begin, tensor.end - tensor.begin};
      const Extents* const box_offsets = offsets == saved.end() ? nullptr : &offsets->second;
      const bool is_unread = !tensor.unread_type.empty();
      Result<void> added =
          is_unread ? add_unread(tensor, box_offsets != nullptr, location) : add_box(tensor, box_offsets, location);
      if (!added) return std::move(added).error().key(tensor.name).file(name);
    }
    return {};
  }

  // Step 4.
  Result<void> hold_against(const safetensors::Index& index, std::vector<std::string>& warnings) {
    if (!left_out_.empty()) {
      warnings.push_back("the index takes tensors from other files than those that hold them too: " +
                         listed_keys(left_out_));
    }
    for (const auto& [key, name] : index.files) {
      const std::optional<std::uint32_t> file = file_of(key);
      if (!file || catalog_.files[*file] != name)
        return Error(ErrorCode::kCorrupt, "the file lacks a tensor that the index names").key(key).file(name);
    }
    if (index.files.size() == catalog_.tensors.size() + catalog_.values.size()) return {};
    std::unordered_map<std::string_view, std::string_view, SeededHash> named(index.files.begin(), index.files.end());
    const auto is_unnamed = [&named](const auto& entry) { return !named.contains(entry.fqn); };
    std::vector<std::string> unnamed;
    for (const CatalogTensor& tensor : catalog_.tensors) {
      if (is_unnamed(tensor)) unnamed.push_back(tensor.fqn);
    }
    for (const CatalogValue& value : catalog_.values) {
      if (is_unnamed(value)) unnamed.push_back(value.fqn);
    }
    if (!index.save_id.empty()) {
      return Error(ErrorCode::kCorrupt, "a file of the model holds a tensor that the index does not name")
          .key(unnamed.front())
          .file(catalog_.files[*file_of(unnamed.front())]);
    }
    std::erase_if(catalog_.tensors, is_unnamed);
    std::erase_if(catalog_.values, is_unnamed);
    warnings.push_back("the index does not name tensors of its files, which are left out: " + listed_keys(unnamed));
    return {};
  }

  // The tensors of types without a DType. Call once.
  std::map<std::string, Checkpoint::Impl::UnreadKey, std::less<>> take_unread() { return std::move(unread_); }

  // Whether a tensor lies in boxes.
  bool has_shards() const { return std::find(sharded_.begin(), sharded_.end(), true) != sharded_.end(); }

  Result<Catalog> take() {
    for (std::size_t i = 0; i < catalog_.tensors.size(); ++i) {
      catalog_.keys.push_back({true, static_cast<std::uint32_t>(i)});
    }
    for (std::size_t i = 0; i < catalog_.values.size(); ++i) {
      catalog_.keys.push_back({false, static_cast<std::uint32_t>(i)});
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
    if (!is_new && !(is_sharded && sharded_[place->second])) return held_twice();
    if (unread_.contains(tensor.name)) return of_two_types(tensor);
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

  // The catalog has the tensor as a value, whose location is that of the first box.
  Result<void> add_unread(const safetensors::Tensor& tensor, bool is_sharded, const ItemLocation& location) {
    if (places_.contains(tensor.name)) return of_two_types(tensor);
    const auto [place, is_new] = unread_.try_emplace(tensor.name, Checkpoint::Impl::UnreadKey{});
    if (!is_new) return is_sharded ? Result<void>() : held_twice();
    place->second = {"a tensor of a type that torch lacks", tensor.unread_type + " " + to_string(tensor.shape)};
    catalog_.values.push_back({tensor.name, location});
    return {};
  }

  static Error held_twice() {
    return {ErrorCode::kCorrupt, "two files of the model hold the tensor: open one of the files alone"};
  }
  static Error of_two_types(const safetensors::Tensor& tensor) {
    return Error(ErrorCode::kCorrupt, "the files of the model disagree about the type of a tensor")
        .actual(tensor.unread_type.empty() ? std::string(name_of(tensor.dtype)) : tensor.unread_type);
  }

  // The file of the tensor, or of its first box; nullopt if no file has the tensor.
  std::optional<std::uint32_t> file_of(const std::string& key) const {
    if (const auto found = places_.find(key); found != places_.end()) {
      return catalog_.tensors[found->second].locations[0].file;
    }
    const auto value = std::ranges::find(catalog_.values, key, &CatalogValue::fqn);
    return value != catalog_.values.end() ? std::optional(value->location.file) : std::nullopt;
  }

  // Whether the index of another program names another file for the tensor, for example a later one with new elements.
  bool lies_elsewhere(const std::string& key, const std::string& file) const {
    const auto named = files_of_index_.find(key);
    return named != files_of_index_.end() && named->second != file;
  }

  std::unordered_map<std::string_view, std::string_view, SeededHash> files_of_index_;  // of another program's index
  std::vector<std::string> left_out_;  // tensors that lie in a file, and by the index in another
  Catalog catalog_;
  std::map<std::string, Checkpoint::Impl::UnreadKey, std::less<>> unread_;
  std::unordered_map<std::string, std::size_t, SeededHash> places_;  // index in the catalog, by name
  std::vector<bool> sharded_;                                        // by index in the catalog
};

struct OpenedFile {
  std::string name;
  DataFile::OpenedSafetensors opened;
  std::string save_id;  // as the header says; empty for a file of another program
  std::optional<safetensors::FileSet> set;
  std::optional<safetensors::SaveOrder> order;

  bool needs_index() const { return set && set->kind == safetensors::FileSet::Kind::kIndexed; }
  bool stands_alone() const { return !set || set->kind == safetensors::FileSet::Kind::kAlone; }
};

// (2) A link of the directory itself is followed, as in the cache of Hugging Face Hub. On the way to a file in a
// subfolder no link is followed.
Result<OpenedFile> open_file(const storage::Storage& storage, const std::string& name) {
  Result<DataFile::OpenedSafetensors> opened = DataFile::open_safetensors(storage, name, !is_in_folder(name));
  const bool is_link = !opened && opened.error().code() == ErrorCode::kUnsafe && !opened.error().actual();
  if (is_link && is_in_folder(name)) {
    return Error(ErrorCode::kUnsafe, "the index names a file in a subfolder, and the path has a link").file(name);
  }
  if (!opened) return std::move(opened).error().file(name).while_doing("opening a safetensors file");
  OpenedFile file{name, *std::move(opened), {}, {}, {}};
  // Another program may have copied the metadata.
  if (file.opened.file->checked_header_bytes() == 0) return file;
  for (const auto& [key, value] : file.opened.header.metadata) {
    if (key == safetensors::kSaveIdName) file.save_id = value;
    if (key == safetensors::kFileSetName) file.set = safetensors::read_file_set(value);
    if (key == safetensors::kSaveOrderName) file.order = safetensors::read_save_order(value);
  }
  return file;
}

// The files that the index names.
Result<std::vector<OpenedFile>> open_indexed(const storage::Storage& storage, const ModelFiles& model) {
  std::vector<OpenedFile> files;
  for (const std::string& name : model.names) {
    Result<OpenedFile> file = open_file(storage, name);
    if (!file && file.error().error_number() == ENOENT) {
      return Error(ErrorCode::kNotFound, "the directory lacks a file that the index '" + model.index_name + "' names")
          .file(name)
          .error_number(ENOENT);
    }
    if (!file) return std::move(file).error();
    files.push_back(*std::move(file));
  }
  return files;
}

// Another program's shards beside `model.safetensors` may be a newer model than the single file, or an older one.
Result<void> check_single_model(const std::vector<OpenedFile>& files) {
  const auto is_single = [](const OpenedFile& file) { return file.name == commit::kSingleModelName; };
  if (files.size() < 2 || std::none_of(files.begin(), files.end(), is_single)) return {};
  const auto shard = std::find_if_not(files.begin(), files.end(), is_single);
  return Error(ErrorCode::kCorrupt,
               "the directory holds '" + std::string(commit::kSingleModelName) +
                   "', files of several, and no index: nothing shows which of them is the model. Remove the files of "
                   "the other model, or open one file alone")
      .file(shard->name)
      .expected("one model")
      .actual(std::to_string(files.size() - 1) + " files beside '" + std::string(commit::kSingleModelName) + "'");
}

// Files that need an index are left out: the files of a save that has not committed. If a set is among the files that
// remain, the set must be whole and alone. Otherwise the files are `model.safetensors`, or the files of another
// program.
Result<std::vector<OpenedFile>> one_set(std::vector<OpenedFile> files) {
  if (std::all_of(files.begin(), files.end(), std::mem_fn(&OpenedFile::needs_index))) {
    return Error(ErrorCode::kCorrupt,
                 "the files belong to a save with an index, and the index is missing: the save is in flight, or was "
                 "killed before its commit; open one of the files alone")
        .file(safetensors::kIndexName)
        .expected("an index of save " + files.front().save_id);
  }
  std::erase_if(files, std::mem_fn(&OpenedFile::needs_index));
  const auto of_set = std::find_if_not(files.begin(), files.end(), std::mem_fn(&OpenedFile::stands_alone));
  if (of_set == files.end()) {
    CAIRN_TRY(check_single_model(files));
    std::vector<std::string> names;
    names.reserve(files.size());
    for (const OpenedFile& file : files) names.push_back(file.name);
    if (const auto lacking = model_directory::lacking_number(names)) {
      return Error(ErrorCode::kCorrupt,
                   "the directory lacks files of the model: by their names there are more. Fetch the missing files, or "
                   "open one of the files alone")
          .file(lacking->name)
          .expected(std::to_string(lacking->count) + " files, as '" + lacking->known + "' says")
          .actual(std::to_string(lacking->found));
    }
    return files;
  }
  for (const OpenedFile& file : files) {
    if (file.save_id == of_set->save_id && file.set == of_set->set) continue;
    return Error(ErrorCode::kCorrupt,
                 "the directory holds files of several saves and no index: a save is in flight or was killed; remove "
                 "the files of one of the saves, or open one of the files alone")
        .file(file.name)
        .expected("a file of save " + of_set->save_id + ", as '" + of_set->name + "'")
        .actual(file.save_id.empty() ? "a file without a save" : "save " + file.save_id);
  }
  if (files.size() == of_set->set->file_count) return files;
  return Error(ErrorCode::kCorrupt, "the directory lacks files of the save: a save is in flight or was killed")
      .file(of_set->name)
      .expected(std::to_string(of_set->set->file_count) + " files of save " + of_set->save_id)
      .actual(std::to_string(files.size()));
}

// (2) The files of a directory without an index.
Result<std::vector<OpenedFile>> open_one_set(const storage::Storage& storage, const std::vector<std::string>& names) {
  std::vector<OpenedFile> files;
  std::optional<Error> unreadable;
  for (const std::string& name : names) {
    Result<OpenedFile> file = open_file(storage, name);
    if (file) {
      files.push_back(*std::move(file));
    } else if (file.error().code() == ErrorCode::kCorrupt && commit::names_a_save(name)) {
      if (!unreadable) unreadable = std::move(file).error();
    } else {
      return std::move(file).error();
    }
  }
  if (files.empty()) return *std::move(unreadable);
  Result<std::vector<OpenedFile>> set = one_set(std::move(files));
  if (!set && unreadable) return *std::move(unreadable);  // the file may be the file that the set lacks
  return set;
}

Result<void> check_save(const std::vector<OpenedFile>& files, const safetensors::Index& index) {
  if (index.save_id.empty()) return {};
  for (const OpenedFile& file : files) {
    if (file.save_id == index.save_id) continue;
    return Error(ErrorCode::kCorrupt, "the file belongs to another save than the index that names the file")
        .file(file.name)
        .expected("save " + index.save_id)
        .actual(file.save_id.empty() ? "a file without a save" : "save " + file.save_id);
  }
  return {};
}

// Steps 2 to 4. The result lacks its storage.
Result<std::unique_ptr<Checkpoint::Impl>> read_files(std::vector<OpenedFile> files,
                                                     const std::optional<safetensors::Index>& index) {
  auto impl = std::make_unique<Checkpoint::Impl>();
  ModelCatalog catalog(index ? &*index : nullptr);
  std::uint64_t bytes = 0;
  std::uint32_t checksum = 0;  // of the names, sizes and headers
  for (OpenedFile& file : files) {
    const safetensors::Header& header = file.opened.header;
    CAIRN_TRY(catalog.add(file.name, header));  // (3)
    impl->model_metadata.add(header);
    if (file.order) commit::order_saves_after(file.order->job_id, file.order->job_start);
    const std::uint64_t size = file.opened.file->bytes().size();
    const std::string seen = file.name + ' ' + std::to_string(size) + ' ' + crc_text(header.checksum) + '\n';
    checksum = crc32(std::as_bytes(std::span(seen)), checksum);
    bytes += size;
    impl->put_file(std::move(file.opened.file));
  }
  if (index) CAIRN_TRY(catalog.hold_against(*index, impl->warnings));  // (4)
  if (index) impl->model_metadata.of_index = index->metadata;
  // Cairn's writer puts the number of files into each file.
  const bool has_set =
      std::all_of(files.begin(), files.end(), [](const OpenedFile& file) { return file.set.has_value(); });
  if (!index && catalog.has_shards() && !has_set) {
    impl->warnings.emplace_back(
        "torch wrote the files as shards without an index: the number of the model's shards is unknown, and nothing "
        "shows whether the last shards are missing");
  }
  impl->unread_keys = catalog.take_unread();
  CAIRN_TRY_ASSIGN(impl->catalog, catalog.take());
  impl->identity =
      std::to_string(files.size()) + " safetensors files of " + std::to_string(bytes) + " bytes, " + crc_text(checksum);
  return impl;
}

Result<std::unique_ptr<Checkpoint::Impl>> read_directory(const storage::Storage& storage) {
  CAIRN_TRY_ASSIGN(const ModelFiles model, model_directory::files_of_model(storage));
  if (model.names.empty() && !model.index) {
    return Error(ErrorCode::kNotFound, "no safetensors file in the directory");
  }
  CAIRN_TRY_ASSIGN(std::vector<OpenedFile> files,
                   model.index ? open_indexed(storage, model) : open_one_set(storage, model.names));
  if (model.index) CAIRN_TRY(check_save(files, *model.index));
  CAIRN_TRY_ASSIGN(std::unique_ptr<Checkpoint::Impl> impl, read_files(std::move(files), model.index));
  // The index decides, but an index that was cut or edited names only a part of the model. Cairn's index has a save.
  if (model.index && model.index->save_id.empty()) {
    if (const auto lacking = model_directory::lacking_number(model.names)) {
      impl->warnings.push_back("the index '" + model.index_name + "' may name only a part of the model: '" +
                               lacking->known + "' is by its name one of " + std::to_string(lacking->count) +
                               " files, and the index does not name '" + lacking->name + "'");
    }
  }
  return impl;
}

Result<std::unique_ptr<Checkpoint::Impl>> read_one_file(const storage::Storage& storage, const std::string& name) {
  std::vector<OpenedFile> files(1);
  CAIRN_TRY_ASSIGN(files[0], open_file(storage, name));
  CAIRN_TRY_ASSIGN(std::unique_ptr<Checkpoint::Impl> impl, read_files(std::move(files), std::nullopt));
  if (const auto count = model_directory::file_count_in(name); count && *count > 1) {
    impl->warnings.push_back("by its name the file is one of " + std::to_string(*count) +
                             " files of a model, and it was opened alone");
  }
  return impl;
}

// A save that commits meanwhile removes the files of the old model: a file that is gone means that there is a newer
// model to read.
Result<std::unique_ptr<Checkpoint::Impl>> read_model(const storage::Storage& storage, const std::string& only_file) {
  if (!only_file.empty()) return read_one_file(storage, only_file);
  constexpr int kTriesMax = 5;
  for (int tries = 1;; ++tries) {
    Result<std::unique_ptr<Checkpoint::Impl>> model = read_directory(storage);
    if (model || model.error().code() != ErrorCode::kNotFound || tries == kTriesMax) return model;
  }
}

}  // namespace

bool holds_model_alone(const storage::Storage& storage) {
  const Result<std::vector<storage::ListedFile>> files = storage.list();
  if (!files) return false;
  const auto is_of_dcp = [](const storage::ListedFile& file) {
    return !file.is_folder && commit::is_dcp_file_name(file.name);
  };
  const auto is_of_model = [](const storage::ListedFile& file) {
    return !file.is_folder &&
           (model_directory::is_index_name(file.name) || model_directory::has_model_suffix(file.name));
  };
  return std::none_of(files->begin(), files->end(), is_of_dcp) &&
         std::any_of(files->begin(), files->end(), is_of_model);
}

Result<std::optional<safetensors::SaveOrder>> order_of_model(const storage::Storage& storage) {
  CAIRN_TRY_ASSIGN(const ModelFiles model, model_directory::files_of_model(storage));
  for (const std::string& name : model.names) {
    Result<OpenedFile> file = open_file(storage, name);
    const bool is_rest = file ? file->needs_index() : commit::names_a_save(name);  // of a save that has not committed
    if (is_rest && !model.index) continue;
    if (!file) return std::move(file).error();
    return file->order;
  }
  return std::optional<safetensors::SaveOrder>();
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

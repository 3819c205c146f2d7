// One process's save: entries become items, items become file images and `.metadata`, images are written, the rename
// commits (transfer/commit.cc has the steps).
#include <cairn/checkpoint.h>

#include <deque>
#include <unordered_map>

#include "checkpointer/directory_calls.h"
#include "checkpointer/job_identity.h"
#include "format/dcp/metadata_template.h"
#include "format/torch_file/value_archive.h"
#include "plan/read_plan.h"
#include "plan/save_plan.h"
#include "storage/posix/posix_storage.h"
#include "transfer/commit.h"
#include "transfer/image_writer.h"

namespace cairn {
namespace {

using manifest::TrailerItem;
using transfer::FileImage;
using transfer::ItemSource;
using transfer::SaveTransaction;

constexpr std::uint32_t kRank = 0;
// File names have six digits for the file's number.
constexpr std::size_t kFilesMax = 1'000'000;

// The items of a save, with the archives that had to be made for them.
struct Items {
  std::vector<ItemSource> sources;
  std::deque<std::string> archives;  // stable addresses: the sources look into them
};

// A growing value must not move what follows it at every save: its archive is padded to a size class.
std::string padded(std::string archive) {
  const std::uint64_t length = torch_file::padded_length(archive.size());
  std::string unpadded = archive;
  Result<std::string> result = torch_file::pad_archive(std::move(archive), length);
  return result ? std::move(*result) : std::move(unpadded);  // not a zip: stored as it is
}

Result<ItemSource> item_of(const Entry& entry, std::deque<std::string>& archives) {
  ItemSource item;
  item.entry = &entry;
  if (const auto* tensor = std::get_if<TensorEntry>(&entry.content)) {
    item.tensor = tensor;
    return item;
  }
  if (const auto* tensor = std::get_if<SerializedTensor>(&entry.content)) {
    item.kind = TrailerItem::Kind::kSerializedTensor;
    item.bytes = tensor->payload;
    return item;
  }
  item.kind = TrailerItem::Kind::kValue;
  if (const auto* value = std::get_if<Value>(&entry.content)) {
    CAIRN_TRY_ASSIGN(std::string archive, torch_file::encode_value(*value));
    item.bytes = archives.emplace_back(padded(std::move(archive)));
  } else {
    item.bytes = archives.emplace_back(padded(std::get<SerializedValue>(entry.content).payload));
  }
  return item;
}

Result<Items> items_of(const StateDict& state) {
  Items items;
  items.sources.reserve(state.entries().size());
  for (const Entry& entry : state.entries()) {
    Result<ItemSource> item = item_of(entry, items.archives);
    if (!item) return std::move(item).error().key(entry.fqn);
    items.sources.push_back(*item);
  }
  return items;
}

// Chunks of one tensor must not overlap: which of the two would a reader get? That other processes hold the rest is
// fine.
Result<void> check_chunks(const Catalog& catalog) {
  for (const CatalogTensor& tensor : catalog.tensors) {
    if (tensor.chunk_count() < 2) continue;
    if (const auto clash = plan::ChunkIndex(tensor).overlapping_chunk()) {
      return Error(ErrorCode::kInvalidArgument, "a chunk that overlaps another of its tensor")
          .key(tensor.fqn)
          .actual(to_string(tensor.chunk(*clash)));
    }
  }
  return {};
}

// The catalog of what is being saved; where items lie is filled in once the images are laid out.
class CatalogBuilder {
 public:
  void add(const Entry& entry, const ItemSource& item) {
    if (item.kind == TrailerItem::Kind::kValue) {
      catalog_.keys.push_back({false, static_cast<std::uint32_t>(catalog_.values.size())});
      places_.push_back({catalog_.values.size(), 0, false});
      catalog_.values.push_back({entry.fqn, {}});
      add_path(entry);
      return;
    }
    const auto [found, fresh] = tensors_.try_emplace(entry.fqn, catalog_.tensors.size());
    if (fresh) {
      catalog_.keys.push_back({true, static_cast<std::uint32_t>(catalog_.tensors.size())});
      catalog_.tensors.push_back(describe(entry));
      add_path(entry);
    }
    CatalogTensor& tensor = catalog_.tensors[found->second];
    const auto* chunk = std::get_if<TensorEntry>(&entry.content);
    const Box box = chunk != nullptr ? chunk->box : Box::whole(tensor.shape).value();
    for (const std::int64_t offset : box.offsets()) tensor.boxes.push_back(offset);
    for (const std::int64_t size : box.sizes()) tensor.boxes.push_back(size);
    places_.push_back({found->second, tensor.locations.size(), true});
    tensor.locations.emplace_back();
  }

  void place(std::size_t item, const ItemLocation& location) {
    const Place& place = places_[item];
    (place.is_tensor ? catalog_.tensors[place.index].locations[place.chunk] : catalog_.values[place.index].location) =
        location;
  }

  Catalog& catalog() { return catalog_; }
  bool record_paths = true;

 private:
  struct Place {
    std::size_t index;
    std::size_t chunk;
    bool is_tensor;
  };

  static CatalogTensor describe(const Entry& entry) {
    CatalogTensor tensor;
    tensor.fqn = entry.fqn;
    if (const auto* chunk = std::get_if<TensorEntry>(&entry.content)) {
      tensor.dtype = chunk->local.dtype;
      tensor.shape = chunk->global_shape;
      tensor.requires_grad = chunk->traits.requires_grad;
    } else {
      const auto& serialized = std::get<SerializedTensor>(entry.content);
      tensor.dtype = serialized.dtype;
      tensor.shape = serialized.shape;
      tensor.requires_grad = serialized.requires_grad;
    }
    return tensor;
  }

  void add_path(const Entry& entry) {
    if (record_paths) catalog_.paths.emplace_back(entry.fqn, entry.path);
  }

  Catalog catalog_;
  std::unordered_map<std::string_view, std::size_t> tensors_;  // by names that the entries own
  std::vector<Place> places_;                                  // of each item
};

std::string uuid_text(const SaveId& id) {
  std::string text = to_hex(id);
  for (const std::size_t place : {20u, 16u, 12u, 8u}) text.insert(place, 1, '-');
  return text;
}

// All that is decided before the first byte is written.
struct LaidOut {
  std::vector<FileImage> images;
  std::vector<std::string> names;  // final ones
  std::string pickle;
  std::uint64_t bytes = 0;
};

Result<LaidOut> lay_out(const Items& items, const SaveTransaction& transaction, const SaveId& save_id,
                        const SaveOptions& options, CatalogBuilder& builder) {
  std::vector<bool> is_value;
  for (const ItemSource& source : items.sources) is_value.push_back(source.kind == TrailerItem::Kind::kValue);
  const plan::FileAssignment files = plan::assign_files(is_value, options.file_per_item);
  if (files.size() > kFilesMax) return Error(ErrorCode::kInvalidArgument, "more than a million files in one save");
  LaidOut result;
  for (std::size_t file = 0; file < files.size(); ++file) {
    std::vector<ItemSource> sources;
    for (const std::size_t item : files[file]) sources.push_back(items.sources[item]);
    const transfer::ImageIdentity identity{save_id, kRank, static_cast<std::uint32_t>(file),
                                           static_cast<std::uint32_t>(files.size())};
    CAIRN_TRY_ASSIGN(FileImage image, FileImage::make(identity, sources));
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const manifest::ItemExtent& extent = image.extent(i);
      builder.place(files[file][i], {static_cast<std::uint32_t>(file), extent.item_offset, extent.item_length});
    }
    result.bytes += image.file_bytes();
    result.images.push_back(std::move(image));
    result.names.push_back(transaction.file_name(kRank, static_cast<std::uint32_t>(file)));
  }
  Catalog& catalog = builder.catalog();
  catalog.files = result.names;
  CAIRN_TRY_ASSIGN(const dcp::MetadataTemplate metadata, dcp::MetadataTemplate::make(catalog));
  result.pickle = metadata.render(*catalog.save_id, *catalog.checkpoint_id, result.names);
  return result;
}

}  // namespace

Result<SaveReport> checkpointer::save_into(storage::Storage& storage, const StateDict& state,
                                           const SaveOptions& options) {
  CAIRN_TRY_ASSIGN(const Items items, items_of(state));
  CatalogBuilder builder;
  builder.record_paths = options.record_paths;
  for (std::size_t i = 0; i < items.sources.size(); ++i) builder.add(state.entries()[i], items.sources[i]);
  Catalog& catalog = builder.catalog();
  CAIRN_TRY(check_chunks(catalog));

  const transfer::SaveIdentity identity = next_save_identity();
  CAIRN_TRY_ASSIGN(const auto transaction, SaveTransaction::claim(storage, identity, options.overwrite));
  catalog.version = "1.0.0";
  catalog.save_id = uuid_text(identity.save_id);
  catalog.checkpoint_id = options.checkpoint_id;
  CAIRN_TRY_ASSIGN(const LaidOut layout, lay_out(items, *transaction, identity.save_id, options, builder));

  std::vector<transfer::ImageFile> files;
  for (std::size_t i = 0; i < layout.images.size(); ++i) {
    files.push_back({transaction->private_name(layout.names[i]), &layout.images[i]});
  }
  const transfer::WriteOptions write_options{options.durability, options.thread_count, options.direct_io,
                                             options.interrupted};
  CAIRN_TRY_ASSIGN(const std::vector<std::uint32_t> trailers, transfer::write_images(storage, files, write_options));
  CAIRN_TRY(transaction->publish(layout.names, options.durability));
  manifest::CommitRecord record;
  for (std::size_t i = 0; i < trailers.size(); ++i) {
    record.files.push_back({layout.names[i], layout.images[i].file_bytes(), trailers[i]});
  }
  CAIRN_TRY_ASSIGN(transfer::CommitReport committed,
                   transaction->commit(layout.pickle, std::move(record), options.durability));

  CAIRN_TRY(catalog.index());
  return SaveReport{identity.save_id, std::make_shared<Catalog>(std::move(catalog)),
                    layout.bytes + layout.pickle.size(), std::move(committed.warnings)};
}

Result<SaveReport> save(const std::filesystem::path& directory, const StateDict& state, const SaveOptions& options) {
  const std::string where = "saving to '" + directory.string() + "'";
  auto storage = storage::PosixStorage::make_directory(directory);
  if (!storage) return std::move(storage).error().while_doing(where);
  SaveOptions complete = options;
  if (complete.checkpoint_id.empty()) complete.checkpoint_id = directory.string();
  Result<SaveReport> report = checkpointer::save_into(**storage, state, complete);
  if (!report) return std::move(report).error().while_doing(where);
  return report;
}

}  // namespace cairn

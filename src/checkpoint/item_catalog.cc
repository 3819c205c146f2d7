#include "checkpoint/item_catalog.h"

#include <algorithm>
#include <span>
#include <utility>
#include <variant>

#include "core/checked.h"
#include "core/checksum.h"
#include "format/safetensors/header.h"
#include "format/torch_checkpointing/shard_pieces.h"
#include "format/torch_file/state_file.h"
#include "format/zip/directory.h"

namespace cairn::checkpointer {
namespace {

using data_file::DataFile;
using torch_checkpointing::BoxSharding;
using torch_checkpointing::MeshSharding;
using torch_checkpointing::SavedItem;
using torch_checkpointing::Sharding;
using torch_checkpointing::ShardingOfRanks;
using torch_checkpointing::UnknownSharding;
using torch_file::StateFile;

std::string tensor_text(DType dtype, const Extents& sizes) {
  return std::string(name_of(dtype)) + " " + to_string(sizes);
}

std::string rank_text(const FoundItemFile& file) { return " in the file of rank " + std::to_string(file.rank); }

// Whether two entries of two files have one content. NaNs are unequal as values, and equal as payloads.
bool are_equal(const StateFile& a, const StateFile::Entry& entry_a, const StateFile& b,
               const StateFile::Entry& entry_b) {
  const Result<Value> value_a = a.value(entry_a);
  const Result<Value> value_b = value_a ? b.value(entry_b) : Result<Value>(Value());
  if (value_a && value_b && *value_a == *value_b) return true;
  const Result<std::string> payload_a = a.payload(entry_a);
  const Result<std::string> payload_b = payload_a ? b.payload(entry_b) : Result<std::string>(std::string());
  return payload_a && payload_b && *payload_a == *payload_b;
}

// A list comes apart in flat keys if it holds a mapping, or a list that does. Recurses at most as deep as a JSON text.
bool json_list_comes_apart(const List& list) {
  return std::ranges::any_of(list.items, [](const Value& value) {
    if (value.get_if<Dict>() != nullptr) return true;
    const List* const inner = value.get_if<List>();
    return inner != nullptr && json_list_comes_apart(*inner);
  });
}

// Of torch_checkpointing's two kinds of geometry.
const Extents* global_shape_of(const Sharding& sharding) {
  if (const auto* mesh = std::get_if<MeshSharding>(&sharding)) return &mesh->global_shape;
  if (const auto* boxes = std::get_if<BoxSharding>(&sharding)) return &boxes->global_shape;
  return nullptr;
}

DType dtype_of(const Sharding& sharding) {
  if (const auto* mesh = std::get_if<MeshSharding>(&sharding)) return mesh->dtype;
  return std::get<BoxSharding>(sharding).dtype;
}

bool is_replicated(const Sharding& sharding) {
  const auto* const mesh = std::get_if<MeshSharding>(&sharding);
  return mesh != nullptr && mesh->is_replicated();
}

// The number of the first element of a part, from the tensor's first. No overflow: the part lies in the tensor, and the
// tensor in its record.
std::uint64_t first_element_of(const Extents& offsets, const Extents& strides) {
  std::uint64_t first = 0;
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    first += static_cast<std::uint64_t>(offsets[i]) * static_cast<std::uint64_t>(strides[i]);
  }
  return first;
}

// As LocalTensor::checksum: of the record's CRC and of the order of the elements.
std::optional<std::uint32_t> checksum_of(const torch_file::TensorNode& tensor, const zip::DirectoryEntry* record) {
  if (record == nullptr || !record->crc) return std::nullopt;
  const Result<std::int64_t> count = element_count(tensor.sizes);
  if (!count || static_cast<std::uint64_t>(*count) * item_bytes(tensor.dtype) != record->size) return std::nullopt;
  return crc32(std::as_bytes(tensor.strides.span()), *record->crc);
}

bool lies_within(const Extents& offsets, const Extents& sizes, const Extents& shape) {
  const Result<Box> box = Box::make(offsets, sizes);
  return box && box->within(shape);
}

}  // namespace

ItemCatalog::ItemCatalog(const torch_checkpointing::SavedMetadata* metadata) : metadata_(metadata) {
  catalog_.format = CheckpointFormat::kTorchCheckpointing;
  if (metadata_ == nullptr) return;
  for (const SavedItem& item : metadata_->items) {
    for (const SavedItem::Tensor& tensor : item.tensors) {
      if (!saved_.try_emplace(tensor.fqn, &tensor).second) saved_twice_.insert(tensor.fqn);
    }
  }
}

ItemCatalog::Key& ItemCatalog::key_of(std::string fqn, Path path, const FoundItemFile& file) {
  const auto [place, is_new] = places_.try_emplace(std::move(fqn), keys_.size());
  if (is_new) {
    Key& key = keys_.emplace_back();
    key.fqn = place->first;
    key.path = std::move(path);
    const auto saved = saved_.find(key.fqn);
    if (saved != saved_.end()) key.saved = saved->second;
    if (saved_twice_.contains(key.fqn)) {
      key.unread = Unread{"two tensors of metadata.pkl have one flat key", key.fqn};
    }
  }
  Key& key = keys_[place->second];
  constexpr std::size_t kNamedFilesMax = 2;
  if (key.files.size() < kNamedFilesMax) key.files.push_back(file.name);
  key.ranks.push_back(file.rank);
  return key;
}

Result<void> ItemCatalog::add_torch(const FoundItemFile& file, DataFile& data) {
  catalog_.files.push_back(file.name);
  budget_ = ByteBudget(data.bytes().size());
  const StateFile& state = *data.state_file();
  for (const StateFile::Entry& entry : state.entries()) {
    Key& key = key_of(entry.fqn, entry.path, file);
    const StateFile::Range range = state.range(entry);
    const ItemLocation location{file_number(), range.offset, range.length};
    if (entry.tensor) {
      LocalTensor local{entry.tensor->dtype,         entry.tensor->sizes, entry.tensor->strides, location,
                        entry.tensor->requires_grad, entry.local_of,      entry.global_sizes};
      local.checksum = checksum_of(*entry.tensor, state.record_of(entry));
      if (auto added = add_tensor(key, file, local, data); !added) {
        return std::move(added).error().key(key.fqn).file(file.name);
      }
      continue;
    }
    add_value(key, location, [&] {
      const StateFile* const first = key.first != nullptr ? key.first->state_file() : nullptr;
      const StateFile::Entry* const first_entry = first != nullptr ? first->find(key.fqn) : nullptr;
      return first_entry != nullptr && are_equal(*first, *first_entry, state, entry);
    });
    if (key.ranks.size() > 1) continue;
    key.first = &data;
    compared_.insert(&data);
  }
  return {};
}

Result<void> ItemCatalog::add_safetensors(const FoundItem& item, const FoundItemFile& file,
                                          const safetensors::Header& header, DataFile& data) {
  catalog_.files.push_back(file.name);
  budget_ = ByteBudget(data.bytes().size());
  for (const safetensors::Tensor& tensor : header.tensors) {
    // An item that is one tensor has the empty name.
    const std::string fqn = tensor.name.empty() ? item.name : item.name + "." + tensor.name;
    Path path{item.name};
    if (!tensor.name.empty()) path.emplace_back(tensor.name);
    Key& key = key_of(fqn, std::move(path), file);
    const ItemLocation location{file_number(), header.data_offset + tensor.begin, tensor.end - tensor.begin};
    if (!tensor.unread_type.empty()) {
      key.location = location;
      key.unread = Unread{"a tensor of a type that torch lacks", tensor.unread_type + " " + to_string(tensor.shape)};
      continue;
    }
    const LocalTensor local{tensor.dtype, tensor.shape, row_major_strides(tensor.shape), location};
    if (auto added = add_tensor(key, file, local, data); !added) {
      return std::move(added).error().key(key.fqn).file(file.name);
    }
  }
  return {};
}

Result<void> ItemCatalog::add_json(const FoundItem& item, const FoundItemFile& file, const Value& value,
                                   std::uint64_t bytes) {
  catalog_.files.push_back(file.name);
  budget_ = ByteBudget(bytes);
  Path path{item.name};
  if (auto added = add_json_entry(path, value, file, bytes); !added) return std::move(added).error().file(file.name);
  return {};
}

// By the rules of DCP's flattening. Recurses at most as deep as a JSON text.
Result<void> ItemCatalog::add_json_entry(Path& path, const Value& value, const FoundItemFile& file,
                                         std::uint64_t bytes) {
  if (const Dict* const dict = value.get_if<Dict>()) {
    for (const auto& [name, element] : dict->items) {
      path.emplace_back(*name.get_if<std::string>());
      CAIRN_TRY(add_json_entry(path, element, file, bytes));
      path.pop_back();
    }
    return {};
  }
  const List* const list = value.get_if<List>();
  if (list != nullptr && json_list_comes_apart(*list)) {
    for (std::size_t i = 0; i < list->items.size(); ++i) {
      path.emplace_back(static_cast<std::int64_t>(i));
      CAIRN_TRY(add_json_entry(path, list->items[i], file, bytes));
      path.pop_back();
    }
    return {};
  }
  std::string fqn = fqn_of(path);
  CAIRN_TRY(budget_.charge(sizeof(Key) + heap_bytes(fqn.size()) + path.size() * sizeof(PathElement)));
  Key& key = key_of(std::move(fqn), path, file);
  add_value(key, {file_number(), 0, bytes}, [&] {
    const auto first = json_values_.find(key.fqn);
    return first != json_values_.end() && first->second == value;
  });
  json_values_.try_emplace(key.fqn, value);
  return {};
}

void ItemCatalog::add_undecoded(const FoundItem& item, const FoundItemFile& file, std::uint64_t bytes,
                                std::string why) {
  catalog_.files.push_back(file.name);
  Key& key = key_of(item.name, {item.name}, file);
  if (key.ranks.size() == 1) key.location = {file_number(), 0, bytes};
  if (!key.unread) key.unread = Unread{"a JSON file that can't be decoded", file.name + ": " + std::move(why)};
}

Result<void> ItemCatalog::add_bytes(const FoundItem& item, const FoundItemFile& file, const DataFile& data) {
  // Larger files are not compared: one rank of a job writes them, or each rank its own.
  constexpr std::uint64_t kComparedBytesMax = std::uint64_t{16} << 20;
  catalog_.files.push_back(file.name);
  Key& key = key_of(item.name, {item.name}, file);
  const std::uint64_t bytes = data.bytes().size();
  const ItemLocation location{file_number(), 0, bytes};
  Result<void> compared;
  add_value(key, location, [&] {
    if (key.first == nullptr || key.first->bytes().size() != bytes || bytes > kComparedBytesMax) return false;
    const Result<DataFile::Item> first = key.first->read_item({0, 0, bytes}, false);
    const Result<DataFile::Item> second = data.read_item({0, 0, bytes}, false);
    if (!first) compared = first.error();
    if (!second) compared = second.error();
    return first && second && first->bytes == second->bytes;
  });
  if (key.ranks.size() == 1) {
    key.first = &data;
    compared_.insert(&data);
  }
  return compared;
}

// `is_equal`: whether the first rank's value equals this one.
void ItemCatalog::add_value(Key& key, const ItemLocation& location, const std::function<bool()>& is_equal) {
  const bool is_first = key.ranks.size() == 1;
  if (is_first) key.location = location;
  if (is_first || key.unread) return;
  if (key.is_tensor || !is_equal()) {
    key.unread =
        Unread{"the ranks hold different values under one key", key.files.front() + " and " + key.files.back()};
  }
}

Result<void> ItemCatalog::add_tensor(Key& key, const FoundItemFile& file, const LocalTensor& local, DataFile& data) {
  const bool is_first = key.ranks.size() == 1;
  if (is_first) {
    key.location = local.location;
    key.is_tensor = true;
    key.tensor.fqn = key.fqn;
    key.tensor.dtype = local.dtype;
    key.tensor.requires_grad = local.requires_grad;
  }
  if (key.unread) return {};
  if (!key.is_tensor) {
    key.unread = Unread{"a tensor in the file of one rank, and a value in the file of another",
                        key.files.front() + " and " + key.files.back()};
    return {};
  }
  if (key.saved != nullptr) return add_sharded(key, file, local, data);
  if (is_first) {
    add_alone(key, local);
  } else {
    key.unread = Unread{"several ranks hold a tensor, and metadata.pkl has no geometry for it",
                        key.files.front() + " and " + key.files.back()};
  }
  return {};
}

// A tensor without geometry, in the file of one rank.
void ItemCatalog::add_alone(Key& key, const LocalTensor& local) {
  const bool is_part = local.global_sizes && !(*local.global_sizes == local.sizes);
  if (!local.local_of.empty() && (local.local_of != "DTensor" || is_part || !local.global_sizes)) {
    key.unread = Unread{"a tensor of a class, and metadata.pkl has no geometry for it",
                        std::string(local.local_of) + ", " + tensor_text(local.dtype, local.sizes)};
    return;
  }
  key.tensor.shape = local.sizes;
  if (const Result<Box> whole = Box::whole(local.sizes)) add_box(key, *whole, local.location);
}

const ShardingOfRanks* ItemCatalog::sharding_of(Key& key, std::uint32_t rank) const {
  // Each rank may have a sharding of its own, in the order of the ranks.
  const std::vector<ShardingOfRanks>& shardings = key.saved->shardings;
  for (std::size_t i = 0; i < shardings.size(); ++i) {
    const std::size_t at = (key.last_sharding + i) % shardings.size();
    if (!metadata_->has_rank(shardings[at].ranks, rank)) continue;
    key.last_sharding = at;
    return &shardings[at];
  }
  return nullptr;
}

Result<void> ItemCatalog::add_sharded(Key& key, const FoundItemFile& file, const LocalTensor& local, DataFile& data) {
  const ShardingOfRanks* const of_ranks = sharding_of(key, file.rank);
  if (of_ranks == nullptr) {
    return Error(ErrorCode::kCorrupt, "a file holds a tensor that metadata.pkl does not give to the file's rank")
        .actual(tensor_text(local.dtype, local.sizes) + rank_text(file));
  }
  const Sharding& sharding = of_ranks->sharding;
  if (const auto* unknown = std::get_if<UnknownSharding>(&sharding)) {
    key.unread = Unread{"only the program that saved the tensor knows how its parts fit together", unknown->reason};
    return {};
  }
  const Extents& shape = *global_shape_of(sharding);
  Extents expected = local.sizes;
  std::vector<BoxSharding::Piece> pieces;
  if (const auto* mesh = std::get_if<MeshSharding>(&sharding)) {
    CAIRN_TRY_ASSIGN(torch_checkpointing::LocalPieces of_rank,
                     torch_checkpointing::local_pieces(*mesh, metadata_->meshes[mesh->mesh], file.rank, budget_));
    expected = std::move(of_rank.local_shape);
    pieces = std::move(of_rank.pieces);
  } else {
    pieces = std::get<BoxSharding>(sharding).pieces;
  }
  if (!(expected == local.sizes) || dtype_of(sharding) != local.dtype) {
    const std::string of_metadata = tensor_text(dtype_of(sharding), expected);
    const std::string of_file = tensor_text(local.dtype, local.sizes) + rank_text(file);
    // The package takes a plain tensor for one that all ranks hold alike, and asks one rank alone for its shape.
    if (is_replicated(sharding)) {
      key.unread = Unread{"the tensor of a rank differs from metadata.pkl", of_metadata + ", and " + of_file};
      return {};
    }
    return Error(ErrorCode::kCorrupt, "the tensor of a rank differs from metadata.pkl")
        .expected(of_metadata)
        .actual(of_file);
  }
  if (key.boxes.empty()) key.tensor.shape = shape;
  if (!(key.tensor.shape == shape) || key.tensor.dtype != local.dtype) {
    key.unread = Unread{"the ranks hold tensors of different shapes or dtypes under one key",
                        tensor_text(key.tensor.dtype, key.tensor.shape) + " and " + tensor_text(local.dtype, shape)};
    return {};
  }
  return add_pieces(key, pieces, local, data);
}

Result<void> ItemCatalog::add_pieces(Key& key, const std::vector<BoxSharding::Piece>& pieces, const LocalTensor& local,
                                     DataFile& data) {
  for (const BoxSharding::Piece& piece : pieces) {
    if (piece.box.element_count() == 0) continue;
    if (!lies_within(piece.local_offsets, piece.box.sizes(), local.sizes)) {
      return Error(ErrorCode::kCorrupt, "metadata.pkl names a part that the tensor of the rank does not have")
          .expected("a part within " + to_string(local.sizes))
          .actual(to_string(piece.box.sizes()) + " at " + to_string(piece.local_offsets));
    }
    CAIRN_TRY(budget_.charge(sizeof(BoxSharding::Piece)));
    const std::size_t boxes_before = key.boxes.size();
    const bool is_whole = piece.box.sizes() == local.sizes;
    add_box(key, piece.box, local.location, is_whole ? local.checksum : std::nullopt);
    if (is_whole || key.boxes.size() == boxes_before) continue;
    data.add_part(key.fqn, {piece.box, first_element_of(piece.local_offsets, local.strides), local.strides});
  }
  return {};
}

void ItemCatalog::add_box(Key& key, const Box& box, const ItemLocation& location,
                          std::optional<std::uint32_t> checksum) {
  std::string numbers;
  for (const Extents* extents : {&box.offsets(), &box.sizes()}) {
    numbers.append(reinterpret_cast<const char*>(extents->data()), extents->size() * sizeof(std::int64_t));
  }
  const auto [first, is_new] = key.boxes.try_emplace(std::move(numbers), checksum);
  if (!is_new) {
    const bool differ = first->second && checksum && *first->second != *checksum;
    if (!differ || key.unread) return;
    key.unread = Unread{"the ranks hold different elements of one part of the tensor",
                        to_string(box.sizes()) + " at " + to_string(box.offsets()) + ", in the files of ranks " +
                            std::to_string(key.ranks.front()) + " and " + std::to_string(key.ranks.back())};
    return;
  }
  CatalogTensor& tensor = key.tensor;
  tensor.boxes.insert(tensor.boxes.end(), box.offsets().begin(), box.offsets().end());
  tensor.boxes.insert(tensor.boxes.end(), box.sizes().begin(), box.sizes().end());
  tensor.locations.push_back(location);
}

// The value that the tensor is in, for example a tuple: the flat key is then the tuple's. Null if there is none.
ItemCatalog::Key* ItemCatalog::value_around(std::string_view fqn) {
  for (std::size_t dot = fqn.rfind('.'); dot != std::string_view::npos && dot > 0; dot = fqn.rfind('.', dot - 1)) {
    const auto place = places_.find(fqn.substr(0, dot));
    if (place == places_.end()) continue;
    Key& key = keys_[place->second];
    return key.is_tensor ? nullptr : &key;
  }
  return nullptr;
}

Result<void> ItemCatalog::check_held(const SavedItem& saved, const FoundItem& found) {
  const auto lacking = [&](const SavedItem::Tensor& tensor, std::uint32_t rank) {
    const auto& layout = saved.files[rank];
    const std::string name = layout ? layout->name : torch_checkpointing::default_file_name(saved.name, rank);
    const bool has_file = std::ranges::find(found.files, name, &FoundItemFile::name) != found.files.end();
    return Error(ErrorCode::kCorrupt, has_file ? "the file of a rank lacks a tensor that metadata.pkl names"
                                               : "the file of a rank is missing")
        .key(tensor.fqn)
        .file(name)
        .expected("the tensor in the file of rank " + std::to_string(rank) + " of " +
                  std::to_string(metadata_->world_size))
        .actual(has_file ? "a file without the key" : "no such file");
  };
  for (const SavedItem::Tensor& tensor : saved.tensors) {
    const auto place = places_.find(tensor.fqn);
    const Key* const key = place != places_.end() ? &keys_[place->second] : nullptr;
    Key* const value = key == nullptr ? value_around(tensor.fqn) : nullptr;
    if (value != nullptr) {
      const bool is_sharded =
          !std::ranges::all_of(tensor.shardings, [](const ShardingOfRanks& it) { return is_replicated(it.sharding); });
      if (is_sharded && !value->unread) {
        value->unread = Unread{"a value holds a part of a tensor that several ranks share", tensor.fqn};
      }
      continue;
    }
    for (const ShardingOfRanks& sharding : tensor.shardings) {
      const std::vector<std::uint32_t>& ranks = metadata_->rank_sets[sharding.ranks];
      if (ranks.empty()) continue;
      if (key == nullptr) return lacking(tensor, ranks.front());
      // A plain tensor counts as replicated on all ranks, though some may lack it.
      if (is_replicated(sharding.sharding)) continue;
      for (const std::uint32_t rank : ranks) {
        if (!std::ranges::binary_search(key->ranks, rank)) return lacking(tensor, rank);
      }
    }
  }
  return {};
}

Result<ItemCatalog::Content> ItemCatalog::finish(const std::vector<FoundItem>& items) {
  for (const FoundItem& item : items) {
    if (item.saved) CAIRN_TRY(check_held(metadata_->items[*item.saved], item));
  }
  Content content;
  for (Key& key : keys_) {
    catalog_.paths.emplace_back(key.fqn, std::move(key.path));
    // A tensor without elements has no boxes yet.
    if (key.is_tensor && !key.unread && key.tensor.locations.empty()) {
      CAIRN_TRY_ASSIGN(const Box whole, Box::whole(key.tensor.shape));
      if (whole.element_count() == 0) add_box(key, whole, key.location);
    }
    const bool is_tensor = key.is_tensor && !key.unread;
    const auto index = is_tensor ? catalog_.tensors.size() : catalog_.values.size();
    catalog_.keys.push_back({is_tensor, static_cast<std::uint32_t>(index)});
    if (is_tensor) {
      catalog_.tensors.push_back(std::move(key.tensor));
      continue;
    }
    catalog_.values.push_back({key.fqn, key.location});
    if (key.unread) content.unread.emplace(key.fqn, *std::move(key.unread));
  }
  content.catalog = std::move(catalog_);
  content.values = std::move(json_values_);
  return content;
}

}  // namespace cairn::checkpointer

#include "format/torch_file/state_file.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/byte_budget.h"
#include "core/checked.h"
#include "core/checksum.h"
#include "format/pickle/graph_writer.h"
#include "format/pickle/machine.h"
#include "format/pickle/value_reader.h"
#include "format/torch_file/archive_writer.h"
#include "format/torch_file/state_flattening.h"
#include "format/torch_file/storage_renamer.h"
#include "format/torch_file/storage_walk.h"
#include "format/torch_file/tensor_resolver.h"
#include "format/torch_file/value_archive.h"
#include "format/torch_file/weights_only.h"
#include "format/zip/directory.h"

namespace cairn::torch_file {
namespace {

using pickle::Graph;
using pickle::Node;

// "PK\3\4": the local header of an archive's first record.
constexpr std::array kArchiveMagic = {std::byte{0x50}, std::byte{0x4b}, std::byte{0x03}, std::byte{0x04}};

// A flat entry, and a key that is no text, has a path of its own. An entry {7: True} of a dict takes 4 bytes of the
// pickle, and about 500 bytes at depth 4; the budget's own rate is for elements of lists.
constexpr std::uint64_t kFlatteningRate = 10;

// Of the tensors in attributes of dicts, per byte of the file.
constexpr std::uint64_t kAttributesRate = 2;

ByteBudget flattening_budget(std::uint64_t pickled_bytes) {
  return ByteBudget(checked_multiply(pickled_bytes, kFlatteningRate).value_or(pickled_bytes));
}

bool begins_archive(std::span<const std::byte> bytes) {
  return bytes.size() >= kArchiveMagic.size() && std::equal(kArchiveMagic.begin(), kArchiveMagic.end(), bytes.begin());
}

std::uint32_t add_to_checksum(std::uint32_t checksum, const std::string& text) {
  return crc32(std::as_bytes(std::span(text)), checksum);
}

// The pickle's bytes are in the file at `offset`.
Error in_pickle(const Error& error, std::uint64_t offset) {
  Error placed(error.code(), error.message());
  if (error.expected()) placed = std::move(placed).expected(*error.expected());
  if (error.actual()) placed = std::move(placed).actual(*error.actual());
  return std::move(placed).offset(offset + error.offset().value_or(0));
}

// The names, beside the storages, of the records that torch.save writes, and that hold nothing of the object.
bool is_bookkeeping(std::string_view record) {
  constexpr std::array<std::string_view, 6> kNames = {
      "data.pkl", "version", "byteorder", ".format_version", ".storage_alignment", ".data/serialization_id"};
  return std::find(kNames.begin(), kNames.end(), record) != kNames.end();
}

}  // namespace

bool StateFile::is_begun_by(std::span<const std::byte> first_bytes) {
  return begins_archive(first_bytes) || begins_legacy_file(first_bytes);
}

Result<std::unique_ptr<StateFile>> StateFile::open(const ByteSource& file) {
  CAIRN_TRY_ASSIGN(std::unique_ptr<StateFile> state, open_any(file));
  CAIRN_TRY(state->flatten());
  return state;
}

Result<std::unique_ptr<StateFile>> StateFile::open_item(const ByteSource& file, std::string item) {
  CAIRN_TRY_ASSIGN(std::unique_ptr<StateFile> state, open_any(file));
  state->around_.item = std::move(item);
  CAIRN_TRY(state->flatten());
  return state;
}

Result<std::unique_ptr<StateFile>> StateFile::open_any(const ByteSource& file) {
  std::array<std::byte, kFirstBytes> buffer{};
  const std::span<std::byte> first = std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), file.size()));
  CAIRN_TRY(file.read_at(0, first));
  const bool is_archive = begins_archive(first);
  if (!is_archive && !begins_legacy_file(first)) {
    return Error(ErrorCode::kUnsupported, "not a file of torch.save").expected("a zip archive, or a legacy file");
  }
  return is_archive ? open_archive(file) : open_legacy(file);
}

Result<std::unique_ptr<StateFile>> StateFile::open_archive(const ByteSource& file) {
  CAIRN_TRY_ASSIGN(const bool is_whole, zip::has_end_record(file));
  if (!is_whole) {
    return Error(ErrorCode::kCorrupt, "the file begins like an archive and has no end record: the file was cut")
        .expected("an end record")
        .actual(std::to_string(file.size()) + " bytes");
  }
  CAIRN_TRY_ASSIGN(ArchiveReader archive, ArchiveReader::open(file));
  if (archive.directory().find("constants.pkl") != nullptr) {  // the sign that torch.load goes by
    return Error(ErrorCode::kUnsupported, "a TorchScript archive, which torch.jit.load reads");
  }
  CAIRN_TRY_ASSIGN(const zip::DirectoryEntry* entry, archive.require("data.pkl"));
  CAIRN_TRY_ASSIGN(std::vector<std::byte> pickled, archive.read("data.pkl"));
  CAIRN_TRY_ASSIGN(const std::uint64_t pickled_offset, zip::payload_offset(file, *entry));
  CAIRN_TRY_ASSIGN(const bool big_endian, archive.big_endian());
  Result<Graph> graph = pickle::parse(pickled);
  if (!graph) return in_pickle(graph.error(), pickled_offset);
  std::uint32_t checksum = crc32(pickled);
  for (const zip::DirectoryEntry& record : archive.directory().entries) {
    const std::string crc = record.crc ? std::to_string(*record.crc) : "none";
    checksum = add_to_checksum(checksum, record.name + ' ' + std::to_string(record.size) + ' ' + crc + '\n');
  }
  std::unique_ptr<StateFile> state(new StateFile(file, std::move(*graph)));
  state->pickled_range_ = {pickled_offset, pickled.size()};
  state->pickled_ = std::move(pickled);
  state->archive_ = std::move(archive);
  state->big_endian_ = big_endian;
  state->opaque_.set_big_endian(big_endian);
  state->checksum_ = checksum;
  return state;
}

Result<std::unique_ptr<StateFile>> StateFile::open_legacy(const ByteSource& file) {
  CAIRN_TRY_ASSIGN(LegacyFile legacy, read_legacy_file(file));
  std::unique_ptr<StateFile> state(new StateFile(file, std::move(legacy.graph)));
  state->pickled_range_ = {legacy.pickled_offset, legacy.pickled.size()};
  state->checksum_ = crc32(legacy.pickled);
  state->pickled_ = std::move(legacy.pickled);
  state->legacy_storages_ = std::move(legacy.storages);
  return state;
}

Result<void> StateFile::flatten() {
  ByteBudget budget = flattening_budget(pickled_.size());
  CAIRN_TRY_ASSIGN(std::vector<FlatEntry> flat, flatten_state(graph_, budget, around_));
  entries_.reserve(flat.size());
  for (FlatEntry& leaf : flat) {
    Entry& entry = entries_.emplace_back(Entry{fqn_of(leaf.path), std::move(leaf.path), leaf.node, std::nullopt});
    if (!makes_tensor(graph_, leaf.node)) continue;
    if (auto taken = take_tensor(entry); !taken) return in_pickle(taken.error(), pickled_range_.offset).key(entry.fqn);
    if (!entry.tensor) continue;
    if (auto checked = check_storage(*entry.tensor); !checked) return std::move(checked).error().key(entry.fqn);
  }
  by_fqn_.reserve(entries_.size());
  for (std::size_t i = 0; i < entries_.size(); ++i) by_fqn_.emplace(entries_[i].fqn, i);
  if (by_fqn_.size() == entries_.size()) return {};
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (by_fqn_.at(entries_[i].fqn) == i) continue;
    return Error(ErrorCode::kUnsupported, "two entries of the state dict have one flat key").key(entries_[i].fqn);
  }
  return {};
}

// An entry of an unknown class stays a value: reading it is refused, and the other entries stay readable.
Result<void> StateFile::take_tensor(Entry& entry) {
  Result<std::optional<TensorNode>> tensor = read_saved_tensor_node(graph_, entry.node);
  if (!tensor && tensor.error().code() != ErrorCode::kUnsupported) return std::move(tensor).error();
  if (tensor && *tensor) entry.tensor = *std::move(*tensor);
  if (entry.tensor || !around_.item) return {};
  Result<std::optional<LocalTensorNode>> local = read_local_tensor_node(graph_, entry.node);
  if (!local && local.error().code() != ErrorCode::kUnsupported) return std::move(local).error();
  if (!local || !*local) return {};
  if ((*local)->node.is_set()) entry.node = (*local)->node;
  entry.local_of = (*local)->class_name;
  entry.global_sizes = std::move((*local)->global_sizes);
  entry.tensor = std::move((*local)->tensor);
  return {};
}

const StateFile::Entry* StateFile::find(std::string_view fqn) const {
  const auto found = by_fqn_.find(fqn);
  return found == by_fqn_.end() ? nullptr : &entries_[found->second];
}

Result<NestedShape> StateFile::shape() const {
  const std::uint64_t attributes_max = checked_multiply(file_->size(), kAttributesRate).value_or(UINT64_MAX);
  const std::uint64_t shape_max = flattening_budget(pickled_.size()).left();
  ByteBudget budget = ByteBudget::of_bytes(checked_add(shape_max, attributes_max).value_or(UINT64_MAX));
  TensorResolver resolver(storages_, opaque_, big_endian_);
  return shape_of_state(graph_, budget, &resolver, around_);
}

Result<std::vector<FlatEntry>> StateFile::attributes_of_dicts() const {
  ByteBudget budget = flattening_budget(pickled_.size());
  return attributes_of_state(graph_, budget, around_);
}

Result<Value> StateFile::read_attributes(pickle::Node attributes) const {
  return attributes_budget_.charged(attributes.bits(), [&](ByteBudget& budget) {
    TensorResolver resolver(storages_, opaque_, big_endian_);
    return pickle::to_value(graph_, attributes, budget, &resolver);
  });
}

Result<void> StateFile::check_storage(const TensorNode& tensor) const {
  return check_storage(tensor.storage_key, tensor.storage_bytes);
}

Result<void> StateFile::check_storage(std::string_view key, std::uint64_t expected) const {
  if (archive_) {
    CAIRN_TRY_ASSIGN(const zip::DirectoryEntry* record, archive_->require(storage_record_name(key)));
    return check_storage_bytes(key, expected, record->size);
  }
  const auto storage = legacy_storages_.find(std::string(key));
  if (storage == legacy_storages_.end()) {
    return Error(ErrorCode::kCorrupt, "the file lacks a storage").expected(key);
  }
  return check_storage_bytes(key, expected, storage->second.bytes);
}

Result<void> StateFile::for_each_storage(const std::function<Result<void>(const NamedStorage&)>& visit) const {
  StorageWalk walk(graph_);
  for (const Entry& entry : entries_) {
    CAIRN_TRY(walk.walk(entry.node, [&](const StorageWalk::Found& found) { return visit({entry.fqn, found}); }));
  }
  // What the keys leave out: attributes of dicts, and keys that are no text.
  return walk.walk(graph_.root(), [&](const StorageWalk::Found& found) { return visit({{}, found}); });
}

std::vector<Error> StateFile::storage_problems(std::size_t count_max) const {
  std::vector<Error> problems;
  (void)for_each_storage([&](const NamedStorage& named) -> Result<void> {
    if (!named.found.bytes || problems.size() >= count_max) return {};
    if (auto checked = check_storage(named.found.key, *named.found.bytes); !checked) {
      Error problem = std::move(checked).error();
      problems.push_back(named.fqn.empty() ? std::move(problem) : std::move(problem).key(named.fqn));
    }
    return {};
  });
  return problems;
}

std::vector<StateFile::StoredBytes> StateFile::stored_bytes() const {
  std::vector<StoredBytes> stored;
  if (archive_) {
    constexpr std::string_view kFolder = "data/";
    for (const zip::DirectoryEntry& record : archive_->directory().entries) {
      if (is_bookkeeping(record.name) || record.size == 0) continue;
      const bool is_storage = record.name.starts_with(kFolder);
      const Result<std::uint64_t> offset = zip::payload_offset(*file_, record);
      stored.push_back({"record " + record.name, is_storage ? record.name.substr(kFolder.size()) : "",
                        offset ? *offset : record.local_header_offset, record.size});
    }
    return stored;
  }
  for (const auto& [key, storage] : legacy_storages_) {
    if (storage.bytes != 0) stored.push_back({"storage " + key, key, storage.offset, storage.bytes});
  }
  std::sort(stored.begin(), stored.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
  return stored;
}

std::vector<StateFile::Record> StateFile::records() const {
  std::vector<Record> records;
  if (!archive_) return records;
  std::unordered_map<const zip::DirectoryEntry*, std::string_view> fqns;
  for (const Entry& entry : entries_) {
    if (!entry.tensor) continue;
    fqns.try_emplace(archive_->directory().find(storage_record_name(entry.tensor->storage_key)), entry.fqn);
  }
  (void)for_each_storage([&](const NamedStorage& named) -> Result<void> {
    const zip::DirectoryEntry* record = archive_->directory().find(storage_record_name(named.found.key));
    if (record != nullptr) fqns.try_emplace(record, named.fqn);
    return {};
  });
  for (const zip::DirectoryEntry& place : archive_->directory().entries) {
    const auto fqn = fqns.find(&place);
    records.push_back({&place, fqn != fqns.end() ? fqn->second : std::string_view()});
  }
  std::sort(records.begin(), records.end(), [](const Record& a, const Record& b) {
    return a.place->local_header_offset < b.place->local_header_offset;
  });
  return records;
}

StateFile::Range StateFile::range(const Entry& entry) const {
  if (!entry.tensor) return pickled_range_;
  if (const zip::DirectoryEntry* const record = record_of(entry)) {
    return {record->local_header_offset, record->end_max - record->local_header_offset};
  }
  const LegacyStorage& storage = legacy_storages_.at(std::string(entry.tensor->storage_key));
  return {storage.offset, storage.bytes};
}

const zip::DirectoryEntry* StateFile::record_of(const Entry& entry) const {
  if (!entry.tensor || !archive_) return nullptr;
  return archive_->directory().find(storage_record_name(entry.tensor->storage_key));
}

Result<StoredTensor> StateFile::tensor(const Entry& entry) const { return stored(*entry.tensor); }

Result<StoredTensor> StateFile::stored(const TensorNode& node) const {
  if (is_quantized(node.dtype)) {
    return Error(ErrorCode::kUnsupported, "a quantised tensor, which only torch can read").actual(name_of(node.dtype));
  }
  StoredTensor record;
  CAIRN_TRY_ASSIGN(const StoragePlace place, find_storage(node.storage_key));
  record.record_offset = place.offset;
  record.record_crc = place.crc;
  record.dtype = node.dtype;
  record.sizes = node.sizes;
  record.strides = node.strides;
  record.first_element = node.storage_offset;
  record.record_bytes = node.storage_bytes;
  record.big_endian = big_endian_;
  record.conjugate = node.conjugate;
  record.negative = node.negative;
  record.requires_grad = node.requires_grad;
  return record;
}

Result<std::vector<StateFile::InnerTensor>> StateFile::inner_tensors() const {
  std::vector<InnerTensor> tensors;
  StorageWalk walk(graph_);
  for (const Entry& entry : entries_) {
    const Node part = entry.tensor ? attributes_of(entry) : entry.node;
    if (!part.is_set()) continue;
    const auto add = [&](const StorageWalk::Found& found) -> Result<void> {
      if (!found.tensor || !check_storage(*found.tensor)) return {};  // value() reports an error of the entry
      CAIRN_TRY_ASSIGN(StoredTensor tensor, stored(*found.tensor));
      tensors.push_back({entry.fqn, std::move(tensor), found.node.bits()});
      return {};
    };
    CAIRN_TRY(walk.walk(part, add));
  }
  return tensors;
}

std::uint64_t StateFile::tensor_object_of(const Entry& entry) const {
  return (is_parameter(entry) ? graph_.elements(graph_.arguments(entry.node)).front() : entry.node).bits();
}

Result<StoragePlace> StateFile::find_storage(std::string_view key) const {
  if (archive_) return CheckedStorages::find_in(*archive_, key);
  const auto storage = legacy_storages_.find(std::string(key));
  if (storage == legacy_storages_.end()) {
    return Error(ErrorCode::kCorrupt, "the file lacks a storage").expected(key);
  }
  return StoragePlace{storage->second.offset, storage->second.bytes, std::nullopt};
}

Result<Value> StateFile::value(const Entry& entry) const {
  return values_budget_.charged(index_of(entry), [&](ByteBudget& budget) {
    TensorResolver resolver(storages_, opaque_, big_endian_);
    return pickle::to_value(graph_, entry.node, budget, &resolver);
  });
}

Result<std::string> StateFile::payload(const Entry& entry) const {
  return payloads_budget_.charged(index_of(entry), [&](ByteBudget& budget) { return make_payload(entry, budget); });
}

Result<void> StateFile::write_as_saved(pickle::Writer& writer, const Entry& entry, StorageRenamer& storages,
                                       pickle::NodeMemo& memo) const {
  return pickle::write_node(writer, graph_, entry.node, &storages, &memo);
}

Result<std::string> StateFile::make_payload(const Entry& entry, ByteBudget& budget) const {
  // torch.load(weights_only=True) reads protocol 2 alone: plain values of other protocols are encoded anew.
  if (pickle::protocol_of(graph_) != 2) {
    CAIRN_TRY_ASSIGN(const Value decoded, value(entry));
    if (first_refused_class(decoded).empty()) return encode_value(decoded);
  }
  pickle::Writer writer(pickle::protocol_of(graph_));
  std::vector<std::string_view> keys;  // by the number that is the new key
  std::unordered_map<std::string_view, std::size_t, SeededHash> numbers;
  StorageRenamer storages([&](const StorageNode& storage) -> Result<std::size_t> {
    const auto [known, is_new] = numbers.try_emplace(storage.key, keys.size());
    if (!is_new) return known->second;
    CAIRN_TRY(check_storage(storage.key, storage.bytes));
    CAIRN_TRY(budget.charge(storage.bytes));
    keys.push_back(storage.key);
    return known->second;
  });
  CAIRN_TRY(pickle::write_node(writer, graph_, entry.node, &storages));
  writer.stop();
  CAIRN_TRY(budget.charge(writer.size()));
  const std::string prefix(kArchivePrefix);
  ArchiveWriter archive;
  archive.add(prefix + "data.pkl", std::move(writer).take());
  if (big_endian_) archive.add(prefix + "byteorder", "big");
  for (std::size_t i = 0; i < keys.size(); ++i) {
    CAIRN_TRY_ASSIGN(const std::vector<std::byte> bytes, storages_.read_whole(keys[i]));
    archive.add(prefix + storage_record_name(std::to_string(i)),
                {reinterpret_cast<const char*>(bytes.data()), bytes.size()}, kStorageAlignment);
  }
  archive.add(prefix + "version", "3\n");
  return std::move(archive).finish();
}

}  // namespace cairn::torch_file

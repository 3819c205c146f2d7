#include "format/dcp/metadata_decoder.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/checked.h"
#include "core/extents_table.h"
#include "core/seeded_hash.h"
#include "format/dcp/location_join.h"
#include "format/dcp/metadata_records.h"
#include "format/dcp/planner_data.h"
#include "format/pickle/machine.h"
#include "format/pickle/value_reader.h"

namespace cairn::dcp {
namespace {

using pickle::Graph;
using pickle::Kind;
using pickle::Node;

// Factor in charges to the budget: a growing vector or text holds its old and new memory for a moment, and spare
// capacity afterwards.
constexpr std::uint64_t kGrowth = 3;
// Charge for a key: the entry in the catalog, in the index by name, and in the index of its items.
constexpr std::uint64_t kKeyBytes = kGrowth * sizeof(CatalogTensor) + 96;
// Charge for a list of strides: the list, and its entry in the table of lists.
constexpr std::uint64_t kStridesBytes = sizeof(Extents) + 128;
// Charge for a chunk, without its offsets and sizes: the location, and the position among the sorted chunks.
constexpr std::uint64_t kChunkBytes = sizeof(ItemLocation) + 2 * sizeof(std::uint32_t);
// Charge for an item of storage_data: an entry in the tables of names and files.
constexpr std::uint64_t kItemBytes = 128;
// PATH_MAX of Linux.
constexpr std::size_t kFileNameBytesMax = 4096;

Error corrupt(std::string message) { return Error(ErrorCode::kCorrupt, std::move(message)); }

std::string name_of_kind(const Graph& graph, Node node) {
  constexpr std::array<std::string_view, 18> kNames = {
      "None",   "a bool",  "an integer", "an integer",  "a float",     "a text",
      "bytes",  "bytes",   "a tuple",    "a frozenset", "a list",      "a set",
      "a dict", "a class", "an object",  "an object",   "a reference", "an object"};
  if (graph.is(node, Kind::kCall) || graph.is(node, Kind::kInstance)) node = graph.callable(node);
  if (graph.is(node, Kind::kGlobal)) return std::string(graph.module(node)) + "." + std::string(graph.name(node));
  return std::string(kNames[static_cast<std::size_t>(graph.kind(node))]);
}

// Whether `node` is an object of a class of this name, in any module: torch has moved the classes between modules.
bool is_object_of(const Graph& graph, Node node, std::string_view name) {
  if (!graph.is(node, Kind::kInstance) && !graph.is(node, Kind::kCall)) return false;
  return graph.is(graph.callable(node), Kind::kGlobal) && graph.name(graph.callable(node)) == name;
}

// Far more attributes than torch's classes have. Thousands of nodes may refer to one object, and each look-up scans the
// object's attributes: without the limit, a small file could cost quadratic time.
constexpr std::size_t kAttributesMax = 64;

// An attribute of an object whose state is a dict. Unset if the object has no attribute of this name, or more than
// kAttributesMax.
Node attribute(const Graph& graph, Node object, std::string_view name) {
  if (!graph.is(object, Kind::kInstance) && !graph.is(object, Kind::kCall)) return {};
  const Node state = graph.state(object);
  if (!state.is_set() || !graph.is(state, Kind::kDict)) return {};
  const pickle::Elements elements = graph.elements(state);
  if (elements.size() > 2 * kAttributesMax) return {};
  Node value;
  for (auto element = elements.begin(); element != elements.end(); ++element) {
    const bool found = graph.text_if(*element) == name;
    ++element;
    if (found) value = *element;  // a dict that sets a name twice keeps the last value, as in Python
  }
  return value;
}

// A torch.Size, or a plain tuple or list of integers, as some producers write.
std::optional<std::vector<std::int64_t>> integers_of(const Graph& graph, Node node) {
  if (graph.makes(node, "torch", "Size")) {
    const pickle::Elements arguments = graph.elements(graph.arguments(node));
    if (arguments.size() != 1) return std::nullopt;
    node = arguments.front();
  }
  if (!graph.is(node, Kind::kTuple) && !graph.is(node, Kind::kList)) return std::nullopt;
  const pickle::Elements elements = graph.elements(node);
  if (elements.size() > kDimensionsMax) return std::nullopt;
  std::vector<std::int64_t> numbers;
  for (const Node element : elements) {
    const std::optional<std::int64_t> number = graph.integer_if(element);
    if (!number) return std::nullopt;
    numbers.push_back(*number);
  }
  return numbers;
}

// The text of a path that was pickled as a pathlib object: by its parts (Python up to 3.12) or as one text (since
// 3.13). Nullopt if `node` is not a path.
Result<std::optional<std::string>> path_text(const Graph& graph, Node node, ByteBudget& budget) {
  using Maybe = std::optional<std::string>;
  if (const auto text = graph.text_if(node)) return Maybe(*text);
  if (!graph.is(node, Kind::kCall) || !graph.is(graph.callable(node), Kind::kGlobal)) return Maybe();
  const std::string_view module = graph.module(graph.callable(node));
  if (module != "pathlib" && module != "pathlib._local") return Maybe();
  const bool is_windows = graph.name(graph.callable(node)).find("Windows") != std::string_view::npos;
  const char separator = is_windows ? '\\' : '/';
  std::string path;
  for (const Node part : graph.elements(graph.arguments(node))) {
    const auto text = graph.text_if(part);
    if (!text) return Maybe();
    CAIRN_TRY(budget.charge(kGrowth * (text->size() + 1)));
    if (!path.empty() && path.back() != separator) path += separator;
    path += *text;
  }
  return Maybe(path.empty() ? "." : std::move(path));
}

class MetadataDecoder {
 public:
  MetadataDecoder(const Graph& graph, MetadataRecords& records, ByteBudget& budget)
      : graph_(graph), records_(records), budget_(budget) {}

  Result<Catalog> decode();

 private:
  Result<void> read_entries(Node dict);
  Result<void> read_tensor(std::string_view fqn, Node object);
  Result<void> read_properties(CatalogTensor& tensor, Node properties);
  Result<void> read_strides(CatalogTensor& tensor, Node node);
  Result<void> read_chunk(CatalogTensor& tensor, ChunkNumbers numbers);
  Result<void> read_chunks(CatalogTensor& tensor, Node list);
  Result<void> read_storage(Node dict);
  Result<void> read_item(LocationJoin& join, Node index, Node info);
  Result<LocationRecord> read_location(std::string_view fqn, Node info, bool& is_known);
  Result<void> read_planner_data(Node node);
  Result<void> read_storage_meta(Node node);
  Result<void> keep(std::string_view name, Node node);
  Result<std::uint32_t> file_number(std::uint32_t path);

  const Graph& graph_;
  MetadataRecords& records_;
  ByteBudget& budget_;
  Catalog catalog_;
  ExtentsTable strides_;
  std::vector<std::optional<LocationJoin::Target>> targets_;  // by number of the name
  std::vector<std::optional<std::uint32_t>> files_;           // by number of the path: number in the catalog
};

Result<Catalog> MetadataDecoder::decode() {
  const Node root = graph_.root();
  if (!is_object_of(graph_, root, "Metadata") || !graph_.state(root).is_set() ||
      !graph_.is(graph_.state(root), Kind::kDict)) {
    return corrupt("not the metadata of a checkpoint")
        .expected("torch.distributed.checkpoint.metadata.Metadata")
        .actual(name_of_kind(graph_, root));
  }
  const Node entries = attribute(graph_, root, "state_dict_metadata");
  if (!entries.is_set()) return corrupt("metadata without its state_dict_metadata");
  CAIRN_TRY(read_entries(entries));
  CAIRN_TRY(catalog_.index());
  if (const Node storage = attribute(graph_, root, "storage_data"); storage.is_set()) CAIRN_TRY(read_storage(storage));
  std::unordered_set<std::string_view, SeededHash> names;
  const pickle::Elements elements = graph_.elements(graph_.state(root));
  for (auto element = elements.begin(); element != elements.end(); ++element) {
    const std::optional<std::string_view> name = graph_.text_if(*element);
    const Node value = *++element;
    if (!name) return corrupt("metadata with an attribute whose name is no text");
    if (!names.insert(*name).second) return corrupt("metadata with an attribute that occurs twice").actual(*name);
    if (name == "state_dict_metadata" || name == "storage_data") continue;
    if (name == "planner_data") {
      CAIRN_TRY(read_planner_data(value));
    } else if (name == "storage_meta") {
      CAIRN_TRY(read_storage_meta(value));
    } else if (name == "version" && (graph_.is(value, Kind::kText) || graph_.is(value, Kind::kNone))) {
      if (const auto version = graph_.text_if(value)) catalog_.version = *version;
    } else {
      CAIRN_TRY(keep(*name, value));
    }
  }
  return std::move(catalog_);
}

Result<void> MetadataDecoder::read_entries(Node dict) {
  if (!graph_.is(dict, Kind::kDict)) {
    return corrupt("metadata whose state_dict_metadata is no dict").actual(name_of_kind(graph_, dict));
  }
  const pickle::Elements elements = graph_.elements(dict);
  catalog_.keys.reserve(elements.size() / 2);
  for (auto element = elements.begin(); element != elements.end(); ++element) {
    const std::optional<std::string_view> fqn = graph_.text_if(*element);
    const Node entry = *++element;
    if (!fqn) return corrupt("metadata with a key that is no text");
    CAIRN_TRY(budget_.charge(kKeyBytes + heap_bytes(fqn->size())));
    if (is_object_of(graph_, entry, "TensorStorageMetadata")) {
      catalog_.keys.push_back({true, static_cast<std::uint32_t>(catalog_.tensors.size())});
      if (auto read = read_tensor(*fqn, entry); !read) return std::move(read).error().key(*fqn);
    } else if (is_object_of(graph_, entry, "BytesStorageMetadata")) {
      catalog_.keys.push_back({false, static_cast<std::uint32_t>(catalog_.values.size())});
      catalog_.values.push_back({std::string(*fqn), {}});
    } else {
      return Error(ErrorCode::kUnsupported, "an entry that is neither a tensor nor bytes")
          .key(*fqn)
          .expected("TensorStorageMetadata or BytesStorageMetadata")
          .actual(name_of_kind(graph_, entry));
    }
  }
  return {};
}

Result<void> MetadataDecoder::read_tensor(std::string_view fqn, Node object) {
  const Node properties = attribute(graph_, object, "properties");
  const Node size = attribute(graph_, object, "size");
  const Node chunks = attribute(graph_, object, "chunks");
  if (!properties.is_set() || !size.is_set() || !chunks.is_set()) {
    return corrupt("a tensor without its properties, size or chunks");
  }
  CatalogTensor& tensor = catalog_.tensors.emplace_back();
  tensor.fqn = fqn;
  CAIRN_TRY(read_properties(tensor, properties));
  const std::optional<std::vector<std::int64_t>> shape = integers_of(graph_, size);
  if (!shape) return corrupt("a tensor whose size is none").actual(name_of_kind(graph_, size));
  tensor.shape = Extents(*shape);
  if (auto count = element_count(tensor.shape); !count) {
    return corrupt("a tensor of a size that cannot be").actual(to_string(tensor.shape));
  }
  return read_chunks(tensor, chunks);
}

// The state is a tuple (dtype, layout, requires_grad, memory format, pinned), since torch 2.15 with the strides behind,
// or, from other producers, a dict.
Result<void> MetadataDecoder::read_properties(CatalogTensor& tensor, Node properties) {
  Node dtype = attribute(graph_, properties, "dtype");
  Node requires_grad = attribute(graph_, properties, "requires_grad");
  Node strides = attribute(graph_, properties, "strides");
  const bool is_object = graph_.is(properties, Kind::kInstance) || graph_.is(properties, Kind::kCall);
  if (is_object && graph_.state(properties).is_set() && graph_.is(graph_.state(properties), Kind::kTuple)) {
    std::size_t i = 0;
    for (const Node element : graph_.elements(graph_.state(properties))) {
      if (i == 0) dtype = element;
      if (i == 2) requires_grad = element;
      if (i == 5) strides = element;
      if (++i == 6) break;
    }
  }
  if (!dtype.is_set() || !graph_.is(dtype, Kind::kGlobal) || graph_.module(dtype) != "torch") {
    return corrupt("a tensor without a dtype").actual(name_of_kind(graph_, dtype.is_set() ? dtype : properties));
  }
  const std::optional<DType> known = dtype_from_name(graph_.name(dtype));
  if (!known)
    return Error(ErrorCode::kUnsupported, "a tensor of a dtype that we do not know")
        .actual(name_of_kind(graph_, dtype));
  tensor.dtype = *known;
  tensor.requires_grad =
      requires_grad.is_set() && graph_.is(requires_grad, Kind::kBool) && graph_.boolean(requires_grad);
  return read_strides(tensor, strides);
}

// torch records the strides of the local tensor, or None. No read of elements depends on them.
Result<void> MetadataDecoder::read_strides(CatalogTensor& tensor, Node node) {
  if (!node.is_set() || graph_.is(node, Kind::kNone)) return {};
  const std::optional<std::vector<std::int64_t>> strides = integers_of(graph_, node);
  const bool can_be = strides && std::ranges::none_of(*strides, [](std::int64_t stride) { return stride < 0; });
  if (!can_be) {
    return corrupt("a tensor with strides that cannot be")
        .expected("at most " + std::to_string(kDimensionsMax) + " integers below 2^63, none negative")
        .actual(strides ? to_string(Extents(*strides)) : name_of_kind(graph_, node));
  }
  CAIRN_TRY(budget_.charge(kStridesBytes + heap_bytes(strides->size() * sizeof(std::int64_t))));
  tensor.strides = strides_[strides_.number_of(Extents(*strides))];
  return {};
}

Result<void> MetadataDecoder::read_chunks(CatalogTensor& tensor, Node list) {
  if (!graph_.is(list, Kind::kList) && !graph_.is(list, Kind::kTuple)) {
    return corrupt("a tensor whose chunks are no list").actual(name_of_kind(graph_, list));
  }
  const pickle::Elements elements = graph_.elements(list);
  CAIRN_TRY(budget_.charge(elements.size(), kChunkBytes + 2 * sizeof(std::int64_t) * tensor.shape.size()));
  tensor.boxes.reserve(elements.size() * 2 * tensor.shape.size());
  tensor.locations.resize(elements.size());
  for (const Node element : elements) {
    if (const std::optional<ChunkNumbers> numbers = records_.chunk(graph_, element)) {
      CAIRN_TRY(read_chunk(tensor, *numbers));
      continue;
    }
    const Node offsets_node = attribute(graph_, element, "offsets");
    const Node sizes_node = attribute(graph_, element, "sizes");
    if (!offsets_node.is_set() || !sizes_node.is_set()) {
      return corrupt("a chunk without its offsets or sizes").actual(name_of_kind(graph_, element));
    }
    std::optional<std::vector<std::int64_t>> numbers = integers_of(graph_, offsets_node);
    const std::optional<std::vector<std::int64_t>> sizes = integers_of(graph_, sizes_node);
    if (!numbers || !sizes || numbers->size() != sizes->size()) {
      return corrupt("a chunk whose offsets and sizes do not fit together");
    }
    numbers->insert(numbers->end(), sizes->begin(), sizes->end());
    CAIRN_TRY(read_chunk(tensor, *numbers));
  }
  return {};
}

Result<void> MetadataDecoder::read_chunk(CatalogTensor& tensor, ChunkNumbers numbers) {
  const std::size_t dimensions = tensor.shape.size();
  bool fits = numbers.size() == 2 * dimensions;
  for (std::size_t d = 0; fits && d < dimensions; ++d) {
    const std::int64_t offset = numbers[d];
    const std::int64_t size = numbers[dimensions + d];
    fits = offset >= 0 && size >= 0 && size <= tensor.shape[d] && offset <= tensor.shape[d] - size;
  }
  if (!fits) {
    const std::size_t half = numbers.size() / 2;
    return corrupt("a chunk that does not lie in its tensor")
        .expected("within " + to_string(tensor.shape))
        .actual("offsets " + to_string(Extents(numbers.first(half))) + ", sizes " +
                to_string(Extents(numbers.subspan(half))));
  }
  tensor.boxes.insert(tensor.boxes.end(), numbers.begin(), numbers.end());
  return {};
}

Result<void> MetadataDecoder::read_storage(Node dict) {
  if (graph_.is(dict, Kind::kNone)) return {};
  if (!graph_.is(dict, Kind::kDict))
    return corrupt("metadata whose storage_data is no dict").actual(name_of_kind(graph_, dict));
  LocationJoin join(catalog_);
  const pickle::Elements elements = graph_.elements(dict);
  CAIRN_TRY(budget_.charge(elements.size() / 2, kItemBytes));
  for (auto element = elements.begin(); element != elements.end(); ++element) {
    const Node index = *element;
    CAIRN_TRY(read_item(join, index, *++element));
  }
  return join.finish();
}

Result<void> MetadataDecoder::read_item(LocationJoin& join, Node index, Node info) {
  std::optional<IndexRecord> record = records_.index(graph_, index);
  std::optional<std::vector<std::int64_t>> offsets;
  if (!record) {
    const Node fqn = attribute(graph_, index, "fqn");
    if (!fqn.is_set() || !graph_.is(fqn, Kind::kText)) {
      return corrupt("an item of storage_data without a name").actual(name_of_kind(graph_, index));
    }
    const Node offset = attribute(graph_, index, "offset");
    const Node hint = attribute(graph_, index, "index");
    if (offset.is_set() && !graph_.is(offset, Kind::kNone)) {
      offsets = integers_of(graph_, offset);
      if (!offsets) return corrupt("an item of storage_data whose offset is none").key(graph_.text(fqn));
    }
    record = IndexRecord{records_.names().number_of(graph_.text(fqn)), std::nullopt, std::nullopt};
    if (offsets) record->offsets = *offsets;
    if (hint.is_set()) record->hint = graph_.integer_if(hint);
  }
  const std::string_view fqn = records_.names()[record->name];
  bool is_known = true;
  CAIRN_TRY_ASSIGN(const LocationRecord location, read_location(fqn, info, is_known));
  if (!is_known) return {};
  if (location.offset < 0 || location.length < 0 || !checked_add(location.offset, location.length)) {
    return corrupt("an item whose place in its file cannot be")
        .key(fqn)
        .file(records_.paths()[location.path])
        .actual("offset " + std::to_string(location.offset) + ", length " + std::to_string(location.length));
  }
  if (record->name >= targets_.size()) targets_.resize(record->name + std::size_t{1});
  std::optional<LocationJoin::Target>& target = targets_[record->name];
  if (!target) target = join.find(fqn);
  CAIRN_TRY_ASSIGN(const std::uint32_t file, file_number(location.path));
  join.assign(*target, record->offsets, record->hint,
              {file, static_cast<std::uint64_t>(location.offset), static_cast<std::uint64_t>(location.length)});
  return {};
}

// Clears `is_known` for an object of another storage writer's class: the chunk then has no location in the catalog.
Result<LocationRecord> MetadataDecoder::read_location(std::string_view fqn, Node info, bool& is_known) {
  if (const std::optional<LocationRecord> folded = records_.location(graph_, info)) return *folded;
  LocationRecord record;
  const Node path = attribute(graph_, info, "relative_path");
  const Node offset = attribute(graph_, info, "offset");
  const Node length = attribute(graph_, info, "length");
  if (!is_object_of(graph_, info, "_StorageInfo") || !path.is_set() || !offset.is_set() || !length.is_set()) {
    is_known = false;
    return record;
  }
  const std::optional<std::int64_t> offset_number = graph_.integer_if(offset);
  const std::optional<std::int64_t> length_number = graph_.integer_if(length);
  if (!graph_.is(path, Kind::kText) || !offset_number || !length_number) {
    return corrupt("an item whose place is not a file, an offset and a length").key(fqn);
  }
  record.path = records_.paths().number_of(graph_.text(path));
  record.offset = *offset_number;
  record.length = *length_number;
  const Node transforms = attribute(graph_, info, "transform_descriptors");
  if (!transforms.is_set() || (!graph_.is(transforms, Kind::kList) && !graph_.is(transforms, Kind::kTuple)))
    return record;
  std::string names;
  for (const Node transform : graph_.elements(transforms)) {
    const std::string_view name = graph_.text_if(transform).value_or("?");
    CAIRN_TRY(budget_.charge(kGrowth * (name.size() + 2)));
    names += names.empty() ? "" : ", ";
    names += name;
  }
  CAIRN_TRY(budget_.charge(kKeyBytes + heap_bytes(fqn.size())));
  if (!names.empty()) catalog_.transforms.emplace(fqn, std::move(names));
  return record;
}

// Only names of items' files enter the catalog. The fold may have seen names of other files.
Result<std::uint32_t> MetadataDecoder::file_number(std::uint32_t path) {
  if (path >= files_.size()) files_.resize(path + std::size_t{1});
  std::optional<std::uint32_t>& file = files_[path];
  if (!file) {
    const std::string_view name = records_.paths()[path];
    // Listings of chunks repeat the file's name for each chunk.
    if (name.size() > kFileNameBytesMax) {
      return corrupt("a data file whose name is longer than any path")
          .expected("at most " + std::to_string(kFileNameBytesMax) + " bytes")
          .actual(std::to_string(name.size()) + " bytes");
    }
    file = static_cast<std::uint32_t>(catalog_.files.size());
    CAIRN_TRY(budget_.charge(heap_bytes(name.size())));
    catalog_.files.emplace_back(name);
  }
  return *file;
}

Result<void> MetadataDecoder::read_planner_data(Node node) {
  if (graph_.is(node, Kind::kNone)) return {};
  CAIRN_TRY_ASSIGN(std::optional<FlatMapping> paths, read_flat_mapping(graph_, node, budget_));
  if (paths && (!paths->empty() || catalog_.keys.empty())) {
    catalog_.paths = std::move(*paths);
    return {};
  }
  return keep("planner_data", node);
}

Result<void> MetadataDecoder::read_storage_meta(Node node) {
  const Node checkpoint_id = attribute(graph_, node, "checkpoint_id");
  const Node save_id = attribute(graph_, node, "save_id");
  if (checkpoint_id.is_set()) {
    CAIRN_TRY_ASSIGN(catalog_.checkpoint_id, path_text(graph_, checkpoint_id, budget_));
  }
  if (save_id.is_set()) {
    if (const auto text = graph_.text_if(save_id)) catalog_.save_id = *text;
  }
  return {};
}

Result<void> MetadataDecoder::keep(std::string_view name, Node node) {
  Result<Value> value = pickle::to_value(graph_, node, budget_, &records_);
  if (!value) return std::move(value).error().while_doing("keeping the metadata's attribute " + std::string(name));
  catalog_.extra.emplace_back(name, std::move(*value));
  return {};
}

}  // namespace

Result<DecodedMetadata> decode_metadata(std::span<const std::byte> bytes) {
  MetadataRecords records(bytes.size());
  CAIRN_TRY_ASSIGN(const Graph graph, pickle::parse(bytes, {}, &records));
  ByteBudget budget(bytes.size());
  CAIRN_TRY(budget.charge(graph.memory_bytes()));
  CAIRN_TRY_ASSIGN(Catalog catalog, MetadataDecoder(graph, records, budget).decode());
  return DecodedMetadata{std::move(catalog), graph.bytes_consumed()};
}

}  // namespace cairn::dcp

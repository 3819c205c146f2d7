#include "format/dcp/metadata_records.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "format/dcp/torch_modules.h"

namespace cairn::dcp {
namespace {

using pickle::Filling;
using pickle::Graph;
using pickle::Kind;
using pickle::Node;

constexpr std::array<std::string_view, 7> kFieldNames = {"offsets", "sizes",         "fqn",   "offset",
                                                         "index",   "relative_path", "length"};

// A folded number: the low two bits are the Folded kind. The remaining bits are a range of numbers_ for a chunk, and
// the number of a record for an index or a location.
enum class Folded : std::uint64_t { kChunk, kIndex, kLocation };
constexpr unsigned kFoldedBits = 2;
constexpr std::uint64_t make_folded(Folded what, std::uint64_t rest) {
  return (rest << kFoldedBits) | static_cast<std::uint64_t>(what);
}
constexpr Folded what_is(std::uint64_t folded) { return static_cast<Folded>(folded & ((1u << kFoldedBits) - 1)); }

// A range of numbers_: the begin in the high bits, the length in the low bits.
constexpr unsigned kRangeBits = 8;
constexpr std::uint64_t kNoRange = ~std::uint64_t{0};
constexpr std::uint32_t kNoHint = std::numeric_limits<std::uint32_t>::max();
constexpr std::size_t kDimensionsFoldedMax = 64;
constexpr std::uint64_t make_range(std::size_t begin, std::size_t count) {
  return (std::uint64_t{begin} << kRangeBits) | count;
}

// The least bytes that torch's pickle takes for a chunk and its item: estimates the number of chunks.
constexpr std::size_t kPickleBytesPerChunk = 128;

}  // namespace

MetadataRecords::MetadataRecords(std::size_t input_bytes) {
  const std::size_t chunks = input_bytes / kPickleBytesPerChunk;
  numbers_.reserve(6 * chunks);
  indices_.reserve(chunks);
  locations_.reserve(chunks);
}

MetadataRecords::Class MetadataRecords::class_of(const Graph& graph, Node callable) {
  const std::size_t number = graph.global_index(callable);
  if (number >= classes_.size()) classes_.resize(number + 1, Class::kUnknown);
  Class& known = classes_[number];
  if (known != Class::kUnknown) return known;
  if (graph.is_global(callable, kMetadataModule, "ChunkStorageMetadata")) {
    known = Class::kChunk;
  } else if (graph.is_global(callable, kMetadataModule, "MetadataIndex")) {
    known = Class::kIndex;
  } else if (graph.is_global(callable, kFilesystemModule, "_StorageInfo")) {
    known = Class::kLocation;
  } else {
    known = Class::kOther;
  }
  return known;
}

bool MetadataRecords::is_field(const Graph& graph, Node key, Field field) {
  Node& seen = field_nodes_[static_cast<std::size_t>(field)];
  if (key == seen) return true;
  if (graph.text_if(key) != kFieldNames[static_cast<std::size_t>(field)]) return false;
  seen = key;
  return true;
}

template <std::size_t Count>
bool MetadataRecords::take_fields(const Graph& graph, const pickle::Elements& state,
                                  const std::array<Field, Count>& fields, std::array<Node, Count>& values) {
  if (state.size() != 2 * Count) return false;
  auto element = state.begin();
  for (std::size_t i = 0; i < Count; ++i) {
    if (!is_field(graph, *element, fields[i])) return false;
    ++element;
    values[i] = *element;
    ++element;
  }
  return true;
}

std::optional<std::uint64_t> MetadataRecords::fold(const Graph& graph, Node instance) {
  const Class kind = class_of(graph, graph.callable(instance));
  const Node state = graph.state(instance);
  if (kind == Class::kOther || !graph.is(state, Kind::kDict)) return std::nullopt;
  const pickle::Elements fields = graph.elements(state);
  if (kind == Class::kChunk) return fold_chunk(graph, fields);
  if (kind == Class::kIndex) return fold_index(graph, fields);
  return fold_location(graph, fields);
}

// On failure numbers_ is unchanged.
bool MetadataRecords::append_shape(const Graph& graph, Node node) {
  const std::optional<std::span<const Node>> shape = graph.shape(node);
  if (!shape || shape->size() > kDimensionsFoldedMax) return false;
  const std::size_t before = numbers_.size();
  for (const Node element : *shape) {
    const std::optional<std::int64_t> number = graph.integer_if(element);
    if (!number) {
      numbers_.resize(before);
      return false;
    }
    numbers_.push_back(*number);
  }
  return true;
}

std::optional<std::uint64_t> MetadataRecords::fold_chunk(const Graph& graph, const pickle::Elements& state) {
  std::array<Node, 2> values;
  if (!take_fields(graph, state, std::array{Field::kOffsets, Field::kSizes}, values)) return std::nullopt;
  const std::size_t before = numbers_.size();
  if (!append_shape(graph, values[0])) return std::nullopt;
  const std::size_t dimensions = numbers_.size() - before;
  if (!append_shape(graph, values[1]) || numbers_.size() - before != 2 * dimensions) {
    numbers_.resize(before);
    return std::nullopt;
  }
  return make_folded(Folded::kChunk, make_range(before, 2 * dimensions));
}

std::optional<std::uint64_t> MetadataRecords::fold_index(const Graph& graph, const pickle::Elements& state) {
  std::array<Node, 3> all;  // the three fields of a tensor's index
  std::array<Node, 2> two;
  const bool is_tensor = take_fields(graph, state, std::array{Field::kFqn, Field::kIndex, Field::kOffset}, all);
  if (!is_tensor) {
    if (!take_fields(graph, state, std::array{Field::kFqn, Field::kIndex}, two)) return std::nullopt;
    all = {two[0], two[1], Node()};
  }
  if (!graph.is(all[0], Kind::kText)) return std::nullopt;
  StoredIndex stored{0, kNoHint, kNoRange};
  if (const std::optional<std::int64_t> hint = graph.integer_if(all[1])) {
    if (*hint < 0 || *hint >= kNoHint) return std::nullopt;
    stored.hint = static_cast<std::uint32_t>(*hint);
  } else if (!graph.is(all[1], Kind::kNone)) {
    return std::nullopt;
  }
  if (is_tensor) {
    const std::size_t before = numbers_.size();
    if (!append_shape(graph, all[2])) return std::nullopt;
    stored.offsets = make_range(before, numbers_.size() - before);
  }
  stored.name = names_.number_of(graph.text(all[0]));
  indices_.push_back(stored);
  return make_folded(Folded::kIndex, indices_.size() - 1);
}

std::optional<std::uint64_t> MetadataRecords::fold_location(const Graph& graph, const pickle::Elements& state) {
  std::array<Node, 3> values;
  if (!take_fields(graph, state, std::array{Field::kRelativePath, Field::kOffset, Field::kLength}, values))
    return std::nullopt;
  const std::optional<std::int64_t> offset = graph.integer_if(values[1]);
  const std::optional<std::int64_t> length = graph.integer_if(values[2]);
  if (!graph.is(values[0], Kind::kText) || !offset || !length) return std::nullopt;
  locations_.push_back({paths_.number_of(graph.text(values[0])), *offset, *length});
  return make_folded(Folded::kLocation, locations_.size() - 1);
}

namespace {

// Takes a text off the front of `fillings`, if the first filling is a text.
std::optional<std::string_view> take_text(std::span<const Filling>& fillings) {
  if (fillings.empty() || !fillings.front().is_text) return std::nullopt;
  const std::string_view text = fillings.front().text;
  fillings = fillings.subspan(1);
  return text;
}

bool are_numbers(std::span<const Filling> fillings, std::span<const std::int64_t> numbers) {
  return std::equal(
      fillings.begin(), fillings.end(), numbers.begin(), numbers.end(),
      [](const Filling& filling, std::int64_t number) { return !filling.is_text && filling.number == number; });
}

bool are_all_numbers(std::span<const Filling> fillings) {
  return std::none_of(fillings.begin(), fillings.end(), [](const Filling& filling) { return filling.is_text; });
}

// A text that equals a field's name proves nothing: the text may be the field's key, not its value.
bool is_value(std::string_view text, std::string_view expected) {
  return text == expected && std::find(kFieldNames.begin(), kFieldNames.end(), text) == kFieldNames.end();
}

}  // namespace

// Every number and every text of the object's opcodes ends up in the object, and the object has no other numbers. If
// the counts agree, the fillings therefore hold all of the object's numbers. A name may be missing from the fillings:
// then the name is a reference to an earlier text, and equal in every object that the stencil matches.
bool MetadataRecords::is_determined_by(std::uint64_t folded, std::span<const Filling> fillings) const {
  const std::uint64_t rest = folded >> kFoldedBits;
  if (what_is(folded) == Folded::kChunk) return are_numbers(fillings, numbers_at(rest));
  const std::optional<std::string_view> text = take_text(fillings);
  if (what_is(folded) == Folded::kLocation) {
    const LocationRecord& location = locations_[rest];
    if (text && !is_value(*text, paths_[location.path])) return false;
    return are_numbers(fillings, std::array{location.offset, location.length});
  }
  const StoredIndex& index = indices_[rest];
  if (text && !is_value(*text, names_[index.name])) return false;
  if (index.hint == kNoHint || index.offsets == kNoRange || fillings.empty()) return false;
  return are_numbers(fillings.first(1), std::array{std::int64_t{index.hint}}) &&
         are_numbers(fillings.subspan(1), numbers_at(index.offsets));
}

std::uint64_t MetadataRecords::append_numbers(std::span<const Filling> fillings) {
  const std::size_t before = numbers_.size();
  for (const Filling& filling : fillings) numbers_.push_back(filling.number);
  return make_range(before, fillings.size());
}

std::optional<std::uint64_t> MetadataRecords::fold_like(std::uint64_t folded, std::span<const Filling> fillings) {
  const std::uint64_t rest = folded >> kFoldedBits;
  if (what_is(folded) != Folded::kChunk) {
    if (what_is(folded) == Folded::kIndex) return fold_index_like(indices_[rest], fillings);
    const std::optional<std::string_view> text = take_text(fillings);
    if (fillings.size() != 2 || !are_all_numbers(fillings)) return std::nullopt;
    const std::uint32_t path = text ? paths_.number_of(*text) : locations_[rest].path;
    locations_.push_back({path, fillings[0].number, fillings[1].number});
    return make_folded(Folded::kLocation, locations_.size() - 1);
  }
  if (!are_all_numbers(fillings)) return std::nullopt;
  return make_folded(Folded::kChunk, append_numbers(fillings));
}

std::optional<std::uint64_t> MetadataRecords::fold_index_like(StoredIndex earlier, std::span<const Filling> fillings) {
  const std::optional<std::string_view> text = take_text(fillings);
  // A hole matches a number as well as a text: a text may be missing and a number be surplus.
  if (fillings.size() != 1 + numbers_at(earlier.offsets).size() || !are_all_numbers(fillings)) return std::nullopt;
  const std::int64_t hint = fillings[0].number;
  if (hint < 0 || hint >= kNoHint) return std::nullopt;
  const std::uint32_t name = text ? names_.number_of(*text) : earlier.name;
  indices_.push_back({name, static_cast<std::uint32_t>(hint), append_numbers(fillings.subspan(1))});
  return make_folded(Folded::kIndex, indices_.size() - 1);
}

std::span<const std::int64_t> MetadataRecords::numbers_at(std::uint64_t range) const {
  return std::span(numbers_).subspan(range >> kRangeBits, range & ((1u << kRangeBits) - 1));
}

std::optional<ChunkNumbers> MetadataRecords::chunk(const Graph& graph, Node node) const {
  if (!graph.is(node, Kind::kFolded) || what_is(graph.folded(node)) != Folded::kChunk) return std::nullopt;
  return numbers_at(graph.folded(node) >> kFoldedBits);
}

std::optional<IndexRecord> MetadataRecords::index(const Graph& graph, Node node) const {
  if (!graph.is(node, Kind::kFolded) || what_is(graph.folded(node)) != Folded::kIndex) return std::nullopt;
  const StoredIndex& stored = indices_[graph.folded(node) >> kFoldedBits];
  IndexRecord record{stored.name, std::nullopt, std::nullopt};
  if (stored.offsets != kNoRange) record.offsets = numbers_at(stored.offsets);
  if (stored.hint != kNoHint) record.hint = stored.hint;
  return record;
}

std::optional<LocationRecord> MetadataRecords::location(const Graph& graph, Node node) const {
  if (!graph.is(node, Kind::kFolded) || what_is(graph.folded(node)) != Folded::kLocation) return std::nullopt;
  return locations_[graph.folded(node) >> kFoldedBits];
}

namespace {

Value shape_value(std::span<const std::int64_t> numbers) {
  Tuple dimensions;
  for (const std::int64_t number : numbers) dimensions.items.emplace_back(number);
  Tuple arguments;
  arguments.items.emplace_back(std::move(dimensions));
  auto shape = std::make_unique<Object>();
  shape->module = "torch";
  shape->name = "Size";
  shape->arguments = std::move(arguments);
  return shape;
}

Value instance_value(std::string_view module, std::string_view name, Dict state) {
  auto object = std::make_unique<Object>();
  object->module = module;
  object->name = name;
  object->arguments = Tuple();
  object->state = std::move(state);
  object->by_new = true;
  return object;
}

}  // namespace

Result<std::optional<Value>> MetadataRecords::resolve(const Graph& graph, Node node, ByteBudget& budget) {
  // Of an instance with three attributes, two of which are shapes.
  constexpr std::uint64_t kInstanceBytes = 3 * sizeof(Object) + 12 * sizeof(Value) + 256;
  Dict state;
  if (const std::optional<ChunkNumbers> numbers = chunk(graph, node)) {
    CAIRN_TRY(budget.charge(kInstanceBytes + numbers->size() * sizeof(Value)));
    state.items.emplace_back("offsets", shape_value(numbers->first(numbers->size() / 2)));
    state.items.emplace_back("sizes", shape_value(numbers->last(numbers->size() / 2)));
    return std::optional(instance_value(kMetadataModule, "ChunkStorageMetadata", std::move(state)));
  }
  if (const std::optional<IndexRecord> record = index(graph, node)) {
    const std::size_t numbers = record->offsets ? record->offsets->size() : 0;
    CAIRN_TRY(budget.charge(kInstanceBytes + numbers * sizeof(Value) + heap_bytes(names_[record->name].size())));
    state.items.emplace_back("fqn", names_[record->name]);
    state.items.emplace_back("index", record->hint ? Value(*record->hint) : Value());
    if (record->offsets) state.items.emplace_back("offset", shape_value(*record->offsets));
    return std::optional(instance_value(kMetadataModule, "MetadataIndex", std::move(state)));
  }
  if (const std::optional<LocationRecord> record = location(graph, node)) {
    CAIRN_TRY(budget.charge(kInstanceBytes + heap_bytes(paths_[record->path].size())));
    state.items.emplace_back("relative_path", paths_[record->path]);
    state.items.emplace_back("offset", record->offset);
    state.items.emplace_back("length", record->length);
    return std::optional(instance_value(kFilesystemModule, "_StorageInfo", std::move(state)));
  }
  return std::optional<Value>();
}

}  // namespace cairn::dcp

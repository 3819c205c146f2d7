#include "format/torch_checkpointing/saved_metadata.h"

#include <algorithm>
#include <charconv>
#include <unordered_set>
#include <utility>

#include "core/byte_budget.h"
#include "core/checked.h"
#include "format/pickle/graph.h"
#include "format/pickle/machine.h"
#include "format/torch_checkpointing/json_path.h"

namespace cairn::torch_checkpointing {
namespace {

using pickle::Elements;
using pickle::Graph;
using pickle::Kind;
using pickle::Node;

// More than any dict with named fields has. A larger dict is none: a look-up by name walks through all entries.
constexpr std::size_t kFieldsMax = 32;
constexpr std::uint32_t kWorldSizeMax = std::uint32_t{1} << 24;
// Of an entry of a hash table, with its node.
constexpr std::uint64_t kTableEntryBytes = 64;

Error damaged_metadata(std::string_view expected, std::string_view actual) {
  return Error(ErrorCode::kCorrupt, "metadata.pkl is no metadata of torch_checkpointing")
      .expected(expected)
      .actual(actual);
}

std::string_view name_of_kind(Kind kind) {
  switch (kind) {
    case Kind::kNone: return "None";
    case Kind::kBool: return "a bool";
    case Kind::kInteger:
    case Kind::kBigInteger: return "an integer";
    case Kind::kReal: return "a float";
    case Kind::kText: return "a text";
    case Kind::kTuple: return "a tuple";
    case Kind::kList: return "a list";
    case Kind::kDict: return "a dict";
    default: return "an object of another kind";
  }
}

class MetadataReader {
 public:
  MetadataReader(const Graph& graph, ByteBudget& budget) : graph_(graph), budget_(budget) {}

  Result<SavedMetadata> read() {
    const Node root = graph_.root();
    CAIRN_TRY_ASSIGN(const std::string_view version, read_version(root));
    CAIRN_TRY_ASSIGN(const Node size, field(root, "world_size"));
    CAIRN_TRY_ASSIGN(const std::int64_t world_size, count(size, "world_size"));
    if (world_size == 0 || world_size > kWorldSizeMax) {
      return damaged_metadata("a world_size of 1 to " + std::to_string(kWorldSizeMax), std::to_string(world_size));
    }
    metadata_.world_size = static_cast<std::uint32_t>(world_size);
    CAIRN_TRY_ASSIGN(const Node entries, field(root, "metadata"));
    CAIRN_TRY(version == "1.0" ? read_flat_entries(root, entries) : read_items(entries));
    return std::move(metadata_);
  }

 private:
  // The first of the two versions was written without a name at times.
  Result<std::string_view> read_version(Node root) {
    CAIRN_TRY_ASSIGN(const std::optional<Node> node, field_if(root, "version"));
    if (!node) return std::string_view("1.0");
    const std::optional<std::string_view> version = graph_.text_if(*node);
    if (version == "1.0" || version == "2.0") return *version;
    return Error(ErrorCode::kUnsupported, "metadata.pkl has a version of torch_checkpointing that is not read")
        .expected("1.0 or 2.0")
        .actual(version.value_or("no text"));
  }

  // (2.0) {item: {"nested_path_to_metadata": {path: shardings}, "rank_to_layout_info": {rank: layout}}}
  Result<void> read_items(Node items) {
    CAIRN_TRY(require_dict(items, "metadata"));
    std::unordered_set<std::string_view, SeededHash> names;
    return graph_.for_each_item(items, [&](Node key, Node value) -> Result<void> {
      CAIRN_TRY_ASSIGN(const std::string_view name, text(key, "the name of an item"));
      if (!names.insert(name).second) return damaged_metadata("each item once", "'" + std::string(name) + "' twice");
      CAIRN_TRY(budget_.charge(sizeof(SavedItem) + kTableEntryBytes + heap_bytes(name.size())));
      SavedItem item{std::string(name), {}, {}};
      CAIRN_TRY_ASSIGN(const Node tensors, field(value, "nested_path_to_metadata"));
      CAIRN_TRY(require_dict(tensors, "nested_path_to_metadata"));
      CAIRN_TRY(graph_.for_each_item(tensors, [&](Node path, Node shardings) -> Result<void> {
        CAIRN_TRY_ASSIGN(const std::string_view path_text, text(path, "the path of a tensor"));
        CAIRN_TRY_ASSIGN(const std::string rest, read_json_path(path_text));
        return add_tensor(item, rest.empty() ? item.name : item.name + "." + rest, shardings);
      }));
      CAIRN_TRY_ASSIGN(const Node layouts, field(value, "rank_to_layout_info"));
      CAIRN_TRY(read_layouts(layouts, item));
      metadata_.items.push_back(std::move(item));
      return {};
    });
  }

  // (1.0) {"metadata": {path with the item: shardings}, "rank_to_layout_info_mappings": {rank: {item: layout}}}
  Result<void> read_flat_entries(Node root, Node entries) {
    CAIRN_TRY(require_dict(entries, "metadata"));
    std::unordered_map<std::string, std::size_t, SeededHash> places;
    const auto item_at = [&](const std::string& name) -> Result<SavedItem*> {
      const auto [place, is_new] = places.try_emplace(name, metadata_.items.size());
      if (is_new) {
        CAIRN_TRY(budget_.charge(sizeof(SavedItem) + kTableEntryBytes + 2 * heap_bytes(name.size())));
        CAIRN_TRY(budget_.charge(metadata_.world_size, sizeof(std::optional<RankFile>)));
        metadata_.items.push_back({name, {}, {}});
        metadata_.items.back().files.resize(metadata_.world_size);
      }
      return &metadata_.items[place->second];
    };
    CAIRN_TRY(graph_.for_each_item(entries, [&](Node path, Node shardings) -> Result<void> {
      CAIRN_TRY_ASSIGN(const std::string_view path_text, text(path, "the path of a tensor"));
      CAIRN_TRY_ASSIGN(const ItemPath split, read_item_path(path_text));
      CAIRN_TRY_ASSIGN(SavedItem* const item, item_at(split.item));
      return add_tensor(*item, split.rest.empty() ? split.item : split.item + "." + split.rest, shardings);
    }));
    CAIRN_TRY_ASSIGN(const Node ranks, field(root, "rank_to_layout_info_mappings"));
    CAIRN_TRY(require_dict(ranks, "rank_to_layout_info_mappings"));
    return graph_.for_each_item(ranks, [&](Node key, Node layouts) -> Result<void> {
      CAIRN_TRY_ASSIGN(const std::uint32_t rank, read_rank_key(key));
      CAIRN_TRY(require_dict(layouts, "the layouts of a rank"));
      return graph_.for_each_item(layouts, [&](Node name, Node layout) -> Result<void> {
        CAIRN_TRY_ASSIGN(const std::string_view item_name, text(name, "the name of an item"));
        if (graph_.is(layout, Kind::kNone)) return {};
        CAIRN_TRY_ASSIGN(SavedItem* const item, item_at(std::string(item_name)));
        CAIRN_TRY_ASSIGN(item->files[rank], read_layout(layout));
        return {};
      });
    });
  }

  Result<void> read_layouts(Node layouts, SavedItem& item) {
    CAIRN_TRY(require_dict(layouts, "rank_to_layout_info"));
    CAIRN_TRY(budget_.charge(metadata_.world_size, sizeof(std::optional<RankFile>) + 1));
    item.files.resize(metadata_.world_size);
    std::vector<bool> is_known(metadata_.world_size);
    std::size_t known = 0;
    CAIRN_TRY(graph_.for_each_item(layouts, [&](Node key, Node layout) -> Result<void> {
      CAIRN_TRY_ASSIGN(const std::uint32_t rank, read_rank_key(key));
      if (!is_known[rank]) ++known;
      is_known[rank] = true;
      if (graph_.is(layout, Kind::kNone)) return {};
      CAIRN_TRY_ASSIGN(item.files[rank], read_layout(layout));
      return {};
    }));
    if (known == metadata_.world_size) return {};
    return damaged_metadata(
        "a layout of each of " + std::to_string(metadata_.world_size) + " ranks for '" + item.name + "'",
        std::to_string(known) + " ranks");
  }

  // A rank as a key: an integer, or its digits.
  Result<std::uint32_t> read_rank_key(Node key) {
    std::optional<std::int64_t> rank = graph_.integer_if(key);
    if (const auto digits = graph_.text_if(key)) {
      std::uint32_t number = 0;
      const auto parsed = std::from_chars(digits->data(), digits->data() + digits->size(), number);
      if (parsed.ec == std::errc() && parsed.ptr == digits->data() + digits->size()) rank = number;
    }
    return check_rank(rank);
  }

  Result<std::uint32_t> check_rank(std::optional<std::int64_t> rank) const {
    if (rank && *rank >= 0 && *rank < metadata_.world_size) return static_cast<std::uint32_t>(*rank);
    return damaged_metadata("a rank below " + std::to_string(metadata_.world_size),
                            rank ? std::to_string(*rank) : "no number");
  }

  Result<RankFile> read_layout(Node layout) {
    CAIRN_TRY_ASSIGN(const Node path, field(layout, "file_path"));
    CAIRN_TRY_ASSIGN(const std::string_view name, text(path, "file_path"));
    CAIRN_TRY_ASSIGN(const Node format, field(layout, "serialization_format"));
    CAIRN_TRY_ASSIGN(const Node type, field(format, "type"));
    CAIRN_TRY_ASSIGN(const std::string_view form, text(type, "the type of a serialization_format"));
    CAIRN_TRY(budget_.charge(heap_bytes(name.size())));
    RankFile file{std::string(name), FileForm::kTorch};
    if (form == "TorchSerialization") return file;
    if (form == "JsonSerialization") file.form = FileForm::kJson;
    if (form == "RawSerialization") file.form = FileForm::kRaw;
    if (form == "SafetensorsSerialization") file.form = FileForm::kSafetensors;
    if (file.form != FileForm::kTorch) return file;
    return Error(ErrorCode::kUnsupported, "a file of an unknown serialization_format").file(name).actual(form);
  }

  Result<void> add_tensor(SavedItem& item, std::string fqn, Node shardings) {
    if (!graph_.is(shardings, Kind::kList) && !graph_.is(shardings, Kind::kTuple)) {
      return damaged_metadata("a list of shardings", name_of_kind(graph_.kind(shardings))).key(fqn);
    }
    CAIRN_TRY(budget_.charge(sizeof(SavedItem::Tensor) + heap_bytes(fqn.size())));
    SavedItem::Tensor tensor{std::move(fqn), {}};
    for (const Node node : graph_.elements(shardings)) {
      CAIRN_TRY(budget_.charge(sizeof(ShardingOfRanks)));
      Result<ShardingOfRanks> sharding = read_sharding_of_ranks(node);
      if (!sharding) return std::move(sharding).error().key(tensor.fqn);
      tensor.shardings.push_back(*std::move(sharding));
    }
    item.tensors.push_back(std::move(tensor));
    return {};
  }

  Result<ShardingOfRanks> read_sharding_of_ranks(Node node) {
    CAIRN_TRY_ASSIGN(const Node packed, field(node, "sharding_metadata"));
    CAIRN_TRY_ASSIGN(const Node ranks, field(node, "ranks"));
    CAIRN_TRY_ASSIGN(const Node type, field(packed, "type"));
    CAIRN_TRY_ASSIGN(const std::string_view name, text(type, "the type of a sharding"));
    CAIRN_TRY_ASSIGN(const Node data, field(packed, "data"));
    CAIRN_TRY_ASSIGN(const std::size_t set, read_rank_set(ranks));
    if (name == "DTensorShardingMetadata") {
      CAIRN_TRY_ASSIGN(Sharding sharding, read_mesh_sharding(data));
      return ShardingOfRanks{std::move(sharding), set};
    }
    if (name == "default_tensor_v1") {
      CAIRN_TRY_ASSIGN(Sharding sharding, read_box_sharding(data));
      return ShardingOfRanks{std::move(sharding), set};
    }
    CAIRN_TRY(budget_.charge(heap_bytes(name.size())));
    return ShardingOfRanks{UnknownSharding{"the sharding class " + std::string(name)}, set};
  }

  Result<std::size_t> read_rank_set(Node node) {
    const auto [place, is_new] = rank_set_numbers_.try_emplace(node.bits(), metadata_.rank_sets.size());
    if (!is_new) return place->second;
    CAIRN_TRY_ASSIGN(const Elements elements, sequence(node, "ranks"));
    CAIRN_TRY(budget_.charge(kTableEntryBytes + sizeof(std::vector<std::uint32_t>)));
    CAIRN_TRY(budget_.charge(elements.size(), sizeof(std::uint32_t)));
    std::vector<std::uint32_t> ranks;
    ranks.reserve(elements.size());
    for (const Node element : elements) {
      CAIRN_TRY_ASSIGN(const std::uint32_t rank, check_rank(graph_.integer_if(element)));
      ranks.push_back(rank);
    }
    std::ranges::sort(ranks);
    if (std::ranges::adjacent_find(ranks) != ranks.end()) return damaged_metadata("each rank once", "a rank twice");
    // Each tensor has a tuple of its own, mostly with the ranks of the tensor before.
    if (!metadata_.rank_sets.empty() && metadata_.rank_sets.back() == ranks) {
      place->second = metadata_.rank_sets.size() - 1;
      return place->second;
    }
    metadata_.rank_sets.push_back(std::move(ranks));
    return place->second;
  }

  Result<Sharding> read_mesh_sharding(Node data) {
    MeshSharding sharding;
    CAIRN_TRY_ASSIGN(const Node shape, field(data, "global_shape"));
    CAIRN_TRY_ASSIGN(sharding.global_shape, read_shape(shape, "global_shape"));
    CAIRN_TRY_ASSIGN(const Node mesh, field(data, "mesh_spec"));
    CAIRN_TRY_ASSIGN(sharding.mesh, read_mesh(mesh));
    CAIRN_TRY_ASSIGN(const Node placements, field(data, "placements"));
    CAIRN_TRY_ASSIGN(const Elements elements, sequence(placements, "placements"));
    const std::size_t dimensions = metadata_.meshes[sharding.mesh].shape.size();
    if (elements.size() != dimensions) {
      return damaged_metadata(std::to_string(dimensions) + " placements, one for each dimension of the mesh",
                              std::to_string(elements.size()));
    }
    CAIRN_TRY(budget_.charge(elements.size(), sizeof(Placement)));
    for (const Node element : elements) {
      CAIRN_TRY_ASSIGN(const std::optional<Placement> placement, read_placement(element, sharding.global_shape.size()));
      if (!placement) return Sharding(UnknownSharding{"a placement of an unknown class"});
      sharding.placements.push_back(*placement);
    }
    CAIRN_TRY_ASSIGN(const std::optional<DType> dtype, read_dtype_name(data));
    if (!dtype) return Sharding(UnknownSharding{"a tensor of an unknown dtype"});
    sharding.dtype = *dtype;
    return Sharding(std::move(sharding));
  }

  Result<std::optional<Placement>> read_placement(Node node, std::size_t dimensions) {
    CAIRN_TRY_ASSIGN(const Node type, field(node, "type"));
    CAIRN_TRY_ASSIGN(const std::string_view name, text(type, "the type of a placement"));
    Placement placement;
    if (name == "Replicate") return std::optional(placement);
    if (name != "Shard" && name != "StridedShard") return std::optional<Placement>();
    CAIRN_TRY_ASSIGN(const Node dim_node, field(node, "dim"));
    CAIRN_TRY_ASSIGN(const std::int64_t dim, count(dim_node, "the dim of a placement"));
    if (static_cast<std::uint64_t>(dim) >= dimensions) {
      return damaged_metadata("a dim below " + std::to_string(dimensions), std::to_string(dim));
    }
    placement.kind = Placement::Kind::kShard;
    placement.dim = static_cast<std::size_t>(dim);
    if (name == "Shard") return std::optional(placement);
    placement.kind = Placement::Kind::kStridedShard;
    CAIRN_TRY_ASSIGN(const Node factor, field(node, "split_factor"));
    CAIRN_TRY_ASSIGN(placement.split_factor, count(factor, "split_factor"));
    if (placement.split_factor == 0) return damaged_metadata("a split_factor above 0", "0");
    return std::optional(placement);
  }

  Result<std::size_t> read_mesh(Node node) {
    const auto [place, is_new] = mesh_numbers_.try_emplace(node.bits(), metadata_.meshes.size());
    if (!is_new) return place->second;
    CAIRN_TRY(budget_.charge(kTableEntryBytes + sizeof(Mesh)));
    Mesh mesh;
    CAIRN_TRY_ASSIGN(const Node shape, field(node, "mesh_shape"));
    CAIRN_TRY_ASSIGN(mesh.shape, read_shape(shape, "mesh_shape"));
    CAIRN_TRY_ASSIGN(const Node data, field(node, "mesh_data"));
    CAIRN_TRY_ASSIGN(const Elements ranks, sequence(data, "mesh_data"));
    const Result<std::int64_t> places = element_count(mesh.shape);
    if (!places || static_cast<std::uint64_t>(*places) != ranks.size()) {
      return damaged_metadata("as many ranks as a mesh of shape " + to_string(mesh.shape) + " has",
                              std::to_string(ranks.size()));
    }
    CAIRN_TRY(budget_.charge(ranks.size(), kTableEntryBytes));
    for (const Node element : ranks) {
      CAIRN_TRY_ASSIGN(const std::uint32_t rank, check_rank(graph_.integer_if(element)));
      if (!mesh.places.try_emplace(rank, mesh.places.size()).second) {
        return damaged_metadata("each rank once in a mesh", "rank " + std::to_string(rank) + " twice");
      }
    }
    metadata_.meshes.push_back(std::move(mesh));
    return place->second;
  }

  Result<Sharding> read_box_sharding(Node data) {
    BoxSharding sharding;
    CAIRN_TRY_ASSIGN(const Node shape, field(data, "global_shape"));
    CAIRN_TRY_ASSIGN(sharding.global_shape, read_shape(shape, "global_shape"));
    CAIRN_TRY_ASSIGN(const std::vector<Extents> global, read_extents_list(data, "global_offsets"));
    CAIRN_TRY_ASSIGN(std::vector<Extents> local, read_extents_list(data, "local_offsets"));
    CAIRN_TRY_ASSIGN(const std::vector<Extents> sizes, read_extents_list(data, "local_sizes"));
    if (global.size() != local.size() || global.size() != sizes.size()) {
      return damaged_metadata(
          "equally many global_offsets, local_offsets and local_sizes",
          std::to_string(global.size()) + ", " + std::to_string(local.size()) + " and " + std::to_string(sizes.size()));
    }
    CAIRN_TRY(budget_.charge(global.size(), sizeof(BoxSharding::Piece)));
    for (std::size_t i = 0; i < global.size(); ++i) {
      Result<Box> box = Box::make(global[i], sizes[i]);
      if (!box || !box->within(sharding.global_shape) || local[i].size() != sizes[i].size()) {
        return damaged_metadata("a box within " + to_string(sharding.global_shape),
                                to_string(sizes[i]) + " at " + to_string(global[i]));
      }
      sharding.pieces.push_back({*std::move(box), std::move(local[i])});
    }
    CAIRN_TRY_ASSIGN(const std::optional<DType> dtype, read_dtype_name(data));
    if (!dtype) return Sharding(UnknownSharding{"a tensor of an unknown dtype"});
    sharding.dtype = *dtype;
    return Sharding(std::move(sharding));
  }

  Result<std::vector<Extents>> read_extents_list(Node data, std::string_view name) {
    CAIRN_TRY_ASSIGN(const Node node, field(data, name));
    CAIRN_TRY_ASSIGN(const Elements elements, sequence(node, name));
    std::vector<Extents> list;
    for (const Node element : elements) {
      CAIRN_TRY_ASSIGN(Extents extents, read_shape(element, name));
      CAIRN_TRY(budget_.charge(sizeof(Extents)));
      list.push_back(std::move(extents));
    }
    return list;
  }

  Result<Extents> read_shape(Node node, std::string_view what) {
    CAIRN_TRY_ASSIGN(const Elements elements, sequence(node, what));
    if (elements.size() > kDimensionsMax) {
      return damaged_metadata("at most " + std::to_string(kDimensionsMax) + " dimensions",
                              std::to_string(elements.size()));
    }
    CAIRN_TRY(budget_.charge(elements.size(), sizeof(std::int64_t)));
    Extents extents(elements.size(), 0);
    std::size_t i = 0;
    for (const Node element : elements) {
      CAIRN_TRY_ASSIGN(extents[i], count(element, what));
      ++i;
    }
    if (auto elements_in = element_count(extents); !elements_in) {
      return damaged_metadata("numbers of a tensor's shape for " + std::string(what), to_string(extents));
    }
    return extents;
  }

  // "torch.bfloat16". Nullopt for a dtype that is not known.
  Result<std::optional<DType>> read_dtype_name(Node data) {
    constexpr std::string_view kModule = "torch.";
    CAIRN_TRY_ASSIGN(const Node node, field(data, "dtype"));
    CAIRN_TRY_ASSIGN(const std::string_view name, text(node, "dtype"));
    if (!name.starts_with(kModule)) return damaged_metadata("a dtype of torch", name);
    return dtype_from_name(name.substr(kModule.size()));
  }

  Result<Elements> sequence(Node node, std::string_view what) const {
    if (graph_.is(node, Kind::kTuple) || graph_.is(node, Kind::kList)) return graph_.elements(node);
    return damaged_metadata("a list for " + std::string(what), name_of_kind(graph_.kind(node)));
  }

  Result<std::int64_t> count(Node node, std::string_view what) const {
    const std::optional<std::int64_t> number = graph_.integer_if(node);
    if (number && *number >= 0) return *number;
    return damaged_metadata("a count for " + std::string(what),
                            number ? std::to_string(*number) : std::string(name_of_kind(graph_.kind(node))));
  }

  Result<std::string_view> text(Node node, std::string_view what) const {
    if (const auto found = graph_.text_if(node)) return *found;
    return damaged_metadata("a text for " + std::string(what), name_of_kind(graph_.kind(node)));
  }

  Result<void> require_dict(Node node, std::string_view what) const {
    if (graph_.is(node, Kind::kDict)) return {};
    return damaged_metadata("a dict for " + std::string(what), name_of_kind(graph_.kind(node)));
  }

  Result<std::optional<Node>> field_if(Node dict, std::string_view name) const {
    if (!graph_.is(dict, Kind::kDict)) {
      return damaged_metadata("a dict with '" + std::string(name) + "'", name_of_kind(graph_.kind(dict)));
    }
    if (graph_.elements(dict).size() > 2 * kFieldsMax) {
      return damaged_metadata(
          "a dict of at most " + std::to_string(kFieldsMax) + " entries with '" + std::string(name) + "'",
          std::to_string(graph_.elements(dict).size() / 2) + " entries");
    }
    const Node found = graph_.value_of(dict, name);
    return found.is_set() ? std::optional(found) : std::nullopt;
  }

  Result<Node> field(Node dict, std::string_view name) const {
    CAIRN_TRY_ASSIGN(const std::optional<Node> found, field_if(dict, name));
    if (found) return *found;
    return damaged_metadata("a dict with '" + std::string(name) + "'", "a dict without");
  }

  const Graph& graph_;
  ByteBudget& budget_;
  SavedMetadata metadata_;
  std::unordered_map<std::uint64_t, std::size_t, SeededHash> rank_set_numbers_;  // by node
  std::unordered_map<std::uint64_t, std::size_t, SeededHash> mesh_numbers_;      // by node
};

}  // namespace

bool MeshSharding::is_replicated() const {
  return std::ranges::all_of(placements, [](const Placement& it) { return it.kind == Placement::Kind::kReplicate; });
}

bool SavedMetadata::has_rank(std::size_t set, std::uint32_t rank) const {
  return std::ranges::binary_search(rank_sets[set], rank);
}

Result<SavedMetadata> read_saved_metadata(std::span<const std::byte> pickled) {
  CAIRN_TRY_ASSIGN(const Graph graph, pickle::parse(pickled));
  // The package writes builtins alone, and unpickles the file: a class would be code that a load of theirs runs.
  if (!graph.globals().empty()) {
    const pickle::GlobalName& global = graph.globals().front();
    return Error(ErrorCode::kUnsafe, "metadata.pkl names a class or a function, and its reader would run code")
        .expected("dicts, lists, tuples, text and integers")
        .actual(std::string(global.module) + "." + std::string(global.name));
  }
  ByteBudget budget(pickled.size());
  return MetadataReader(graph, budget).read();
}

std::string default_file_name(std::string_view item, std::uint32_t rank) {
  return std::string(item) + "_" + std::to_string(rank) + ".pt";
}

std::optional<DefaultFile> parse_default_file_name(std::string_view name) {
  constexpr std::string_view kSuffix = ".pt";
  if (!name.ends_with(kSuffix)) return std::nullopt;
  name.remove_suffix(kSuffix.size());
  const std::size_t mark = name.rfind('_');
  if (mark == std::string_view::npos || mark == 0) return std::nullopt;
  const std::string_view digits = name.substr(mark + 1);
  DefaultFile file{name.substr(0, mark), 0};
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), file.rank);
  const bool is_canonical = digits.size() == 1 || !digits.starts_with('0');
  if (digits.empty() || !is_canonical || parsed.ec != std::errc() || parsed.ptr != digits.data() + digits.size()) {
    return std::nullopt;
  }
  return file;
}

}  // namespace cairn::torch_checkpointing

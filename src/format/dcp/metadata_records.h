// MetadataRecords: the small objects of `.metadata` (a few per chunk) as compact records. Objects are folded while the
// pickle is being read: a graph of half a million objects never lies in memory.
//
// One thread at a time. Folds only objects in exactly torch's form. All other objects stay in the graph, and
// MetadataDecoder reads them there.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "format/dcp/name_table.h"
#include "format/pickle/graph.h"
#include "format/pickle/machine.h"
#include "format/pickle/value_reader.h"

namespace cairn::dcp {

// A ChunkStorageMetadata: the offsets, then the sizes, equally many.
using ChunkNumbers = std::span<const std::int64_t>;

// A MetadataIndex: names an item.
struct IndexRecord {
  std::uint32_t name = 0;                                // index into names()
  std::optional<std::span<const std::int64_t>> offsets;  // nullopt for a value that is not a tensor
  std::optional<std::int64_t> hint;  // position among the chunks of the tensor, if the writer stored a position
};

// A _StorageInfo: the place of an item's bytes.
struct LocationRecord {
  std::uint32_t path = 0;  // index into paths()
  std::int64_t offset = 0;
  std::int64_t length = 0;
};

class MetadataRecords final : public pickle::FoldHandler, public pickle::Resolver {
 public:
  // `input_bytes` is the size of the pickle: reserves memory for the expected number of records.
  explicit MetadataRecords(std::size_t input_bytes);

  std::optional<std::uint64_t> fold(const pickle::Graph& graph, pickle::Node instance) override;
  bool is_determined_by(std::uint64_t folded, std::span<const pickle::Filling> fillings) const override;
  std::optional<std::uint64_t> fold_like(std::uint64_t folded, std::span<const pickle::Filling> fillings) override;
  // Turns a folded object back into its Value, for a folded object inside an attribute of the metadata that the catalog
  // keeps as is.
  Result<std::optional<Value>> resolve(const pickle::Graph& graph, pickle::Node node, ByteBudget& budget) override;

  // The names of items, and the names of files.
  NameTable& names() noexcept { return names_; }
  NameTable& paths() noexcept { return paths_; }

  // The record to which `node` was folded; nullopt if `node` was not folded, or to a record of another kind. The spans
  // live as long as this object.
  std::optional<ChunkNumbers> chunk(const pickle::Graph& graph, pickle::Node node) const;
  std::optional<IndexRecord> index(const pickle::Graph& graph, pickle::Node node) const;
  std::optional<LocationRecord> location(const pickle::Graph& graph, pickle::Node node) const;

 private:
  enum class Class : std::uint8_t { kUnknown, kOther, kChunk, kIndex, kLocation };
  enum class Field : std::uint8_t { kOffsets, kSizes, kFqn, kOffset, kIndex, kRelativePath, kLength };
  static constexpr std::size_t kFieldCount = 7;
  struct StoredIndex {
    std::uint32_t name;
    std::uint32_t hint;     // kNoHint if the index has none
    std::uint64_t offsets;  // a range of numbers_, or kNoRange
  };

  Class class_of(const pickle::Graph& graph, pickle::Node callable);
  bool is_field(const pickle::Graph& graph, pickle::Node key, Field field);
  // Whether the keys of `state` are `fields`, in order. If true, `values` holds the values of the fields.
  template <std::size_t Count>
  bool take_fields(const pickle::Graph& graph, const pickle::Elements& state, const std::array<Field, Count>& fields,
                   std::array<pickle::Node, Count>& values);
  bool append_shape(const pickle::Graph& graph, pickle::Node node);

  std::optional<std::uint64_t> fold_chunk(const pickle::Graph& graph, const pickle::Elements& state);
  std::optional<std::uint64_t> fold_index(const pickle::Graph& graph, const pickle::Elements& state);
  std::optional<std::uint64_t> fold_location(const pickle::Graph& graph, const pickle::Elements& state);
  std::optional<std::uint64_t> fold_index_like(StoredIndex earlier, std::span<const pickle::Filling> fillings);
  std::uint64_t append_numbers(std::span<const pickle::Filling> fillings);  // returns the range of the appended numbers
  std::span<const std::int64_t> numbers_at(std::uint64_t range) const;

  std::vector<Class> classes_;  // by number of the global
  // For each field: the node in which the field's name was last seen.
  std::array<pickle::Node, kFieldCount> field_nodes_{};
  NameTable names_;
  NameTable paths_;
  std::vector<std::int64_t> numbers_;
  std::vector<StoredIndex> indices_;
  std::vector<LocationRecord> locations_;
};

}  // namespace cairn::dcp

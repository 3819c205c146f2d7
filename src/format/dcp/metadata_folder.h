// MetadataFolder: the small objects of which `.metadata` has one per chunk, as records: they are folded while the
// pickle is being read, so that no graph of half a million of them ever lies in memory.
//
// One thread at a time. Only objects that look exactly as torch writes them are folded; all others stay in the graph,
// for the decoder to look at with patience.
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

// A ChunkStorageMetadata: its offsets, then its sizes, the same number of each.
using ChunkNumbers = std::span<const std::int64_t>;

// A MetadataIndex: which item.
struct IndexRecord {
  std::uint32_t name = 0;                                // in names()
  std::optional<std::span<const std::int64_t>> offsets;  // none for a non-tensor
  std::optional<std::int64_t> hint;  // position among the chunks of its tensor, if the writer knew it
};

// A _StorageInfo: where its bytes are.
struct LocationRecord {
  std::uint32_t path = 0;  // in paths()
  std::int64_t offset = 0;
  std::int64_t length = 0;
};

class MetadataFolder final : public pickle::Folder, public pickle::Resolver {
 public:
  // `input_bytes` is the size of the pickle, for a guess at how much will come.
  explicit MetadataFolder(std::size_t input_bytes);

  std::optional<std::uint64_t> fold(const pickle::Graph& graph, pickle::Node instance) override;
  bool is_told_by(std::uint64_t folded, std::span<const pickle::Filling> fillings) const override;
  std::optional<std::uint64_t> fold_like(std::uint64_t folded, std::span<const pickle::Filling> fillings) override;
  // Gives a folded object back as what it was, where it turns up in something that we only keep.
  Result<std::optional<Value>> resolve(const pickle::Graph& graph, pickle::Node node, ByteBudget& budget) override;

  // The names of items, and those of files.
  NameTable& names() noexcept { return names_; }
  NameTable& paths() noexcept { return paths_; }

  // What `node` was folded to; nullopt if it was not, or to something else. The spans live as long as the folder.
  std::optional<ChunkNumbers> chunk(const pickle::Graph& graph, pickle::Node node) const;
  std::optional<IndexRecord> index(const pickle::Graph& graph, pickle::Node node) const;
  std::optional<LocationRecord> location(const pickle::Graph& graph, pickle::Node node) const;

 private:
  enum class Class : std::uint8_t { kUnknown, kOther, kChunk, kIndex, kLocation };
  enum class Field : std::uint8_t { kOffsets, kSizes, kFqn, kOffset, kIndex, kRelativePath, kLength };
  static constexpr std::size_t kFieldCount = 7;
  struct StoredIndex {
    std::uint32_t name;
    std::uint32_t hint;     // or kNoHint
    std::uint64_t offsets;  // a range of numbers_, or kNoRange
  };

  Class class_of(const pickle::Graph& graph, pickle::Node callable);
  bool is_field(const pickle::Graph& graph, pickle::Node key, Field field);
  // Whether the keys of `state` are `fields`, in this order; what belongs to them is then in `values`.
  template <std::size_t Count>
  bool take_fields(const pickle::Graph& graph, const pickle::Elements& state, const std::array<Field, Count>& fields,
                   std::array<pickle::Node, Count>& values);
  bool append_shape(const pickle::Graph& graph, pickle::Node node);

  std::optional<std::uint64_t> fold_chunk(const pickle::Graph& graph, const pickle::Elements& state);
  std::optional<std::uint64_t> fold_index(const pickle::Graph& graph, const pickle::Elements& state);
  std::optional<std::uint64_t> fold_location(const pickle::Graph& graph, const pickle::Elements& state);
  std::optional<std::uint64_t> fold_index_like(StoredIndex earlier, std::span<const pickle::Filling> fillings);
  std::uint64_t append_numbers(std::span<const pickle::Filling> fillings);  // gives their range
  std::span<const std::int64_t> numbers_at(std::uint64_t range) const;

  std::vector<Class> classes_;                           // by number of the global
  std::array<pickle::Node, kFieldCount> field_nodes_{};  // where each field's name was seen last
  NameTable names_;
  NameTable paths_;
  std::vector<std::int64_t> numbers_;
  std::vector<StoredIndex> indices_;
  std::vector<LocationRecord> locations_;
};

}  // namespace cairn::dcp

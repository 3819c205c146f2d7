// SavedMetadata: the content of `metadata.pkl`, the file in which Meta's package torch_checkpointing saves the geometry
// of the tensors of all ranks, and the file of each item and rank.
//
// Inert: nothing that the pickle names is imported or called; a pickle with a class is refused. Versions 1.0 and 2.0.
// Parts that the pickle shares stay shared: memory and time are in proportion to the pickle. Immutable once read.
#pragma once

#include <cairn/result.h>
#include <cairn/tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "core/seeded_hash.h"

namespace cairn::torch_checkpointing {

inline constexpr std::string_view kMetadataName = "metadata.pkl";

// The devices of a DTensor: a grid of ranks.
struct Mesh {
  Extents shape;
  std::unordered_map<std::uint32_t, std::uint64_t> places;  // by rank: the number in the grid, row-major
};

struct Placement {
  enum class Kind : std::uint8_t { kReplicate, kShard, kStridedShard };
  Kind kind = Kind::kReplicate;
  std::size_t dim = 0;            // of kShard and kStridedShard
  std::int64_t split_factor = 1;  // of kStridedShard
};

// Of a DTensor: one placement for each dimension of the mesh.
struct MeshSharding {
  Extents global_shape;
  DType dtype = DType::kFloat32;
  std::size_t mesh = 0;  // index into SavedMetadata::meshes
  std::vector<Placement> placements;
  bool is_replicated() const;
};

// Boxes of a rank's tensor, and their places in the whole tensor. Each box lies in the whole tensor.
struct BoxSharding {
  struct Piece {
    Box box;  // in the whole tensor
    Extents local_offsets;
  };
  Extents global_shape;
  DType dtype = DType::kFloat32;
  std::vector<Piece> pieces;
};

// A sharding of a class that only the saving program knows, or of a dtype that torch lacks today: in words.
struct UnknownSharding {
  std::string reason;
};

using Sharding = std::variant<MeshSharding, BoxSharding, UnknownSharding>;

// A tensor as some ranks hold it.
struct ShardingOfRanks {
  Sharding sharding;
  std::size_t ranks = 0;  // index into SavedMetadata::rank_sets
};

enum class FileForm : std::uint8_t { kTorch, kJson, kRaw, kSafetensors };

struct RankFile {
  std::string name;  // relative to the directory, and unchecked
  FileForm form = FileForm::kTorch;
};

struct SavedItem {
  std::string name;
  struct Tensor {
    std::string fqn;  // the names of item and path, joined by dots
    std::vector<ShardingOfRanks> shardings;
  };
  std::vector<Tensor> tensors;
  // By rank; nullopt: the file has the default name.
  std::vector<std::optional<RankFile>> files;
};

struct SavedMetadata {
  std::uint32_t world_size = 0;
  std::vector<SavedItem> items;
  std::vector<Mesh> meshes;
  std::vector<std::vector<std::uint32_t>> rank_sets;  // each ascending, without the same rank twice
  // Whether the set, an index into `rank_sets`, has the rank.
  bool has_rank(std::size_t set, std::uint32_t rank) const;
};

// kCorrupt if the bytes are no pickle, or no metadata of torch_checkpointing; kUnsafe for a pickle that names a class,
// or that takes memory out of proportion; kUnsupported for another version.
Result<SavedMetadata> read_saved_metadata(std::span<const std::byte> pickled);

// "model_3.pt": the file of a rank without a layout of its own.
std::string default_file_name(std::string_view item, std::uint32_t rank);
// Nullopt if the name is not of the form of default_file_name().
struct DefaultFile {
  std::string_view item;
  std::uint32_t rank = 0;
};
std::optional<DefaultFile> parse_default_file_name(std::string_view name);

}  // namespace cairn::torch_checkpointing

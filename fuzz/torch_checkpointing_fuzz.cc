// Reads any bytes as metadata.pkl of torch_checkpointing, as a JSON item, and as the path of a tensor. The pieces of
// each tensor of an accepted metadata lie in the tensor, and those of one rank fill its local shape exactly.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>
#include <variant>

#include "core/byte_budget.h"
#include "decoding_bounds.h"
#include "format/json/json_value.h"
#include "format/torch_checkpointing/json_path.h"
#include "format/torch_checkpointing/saved_metadata.h"
#include "format/torch_checkpointing/shard_pieces.h"

namespace torch_checkpointing_fuzz {

namespace {

namespace tc = cairn::torch_checkpointing;

// The graph of the pickle and the metadata made of it are in memory at one time; and a list while it grows, twice.
constexpr std::uint64_t kBytesPerInputByte = 2 * cairn::fuzz::DecodingBounds::kBytesPerInputByte;

void check_sharding(const tc::SavedMetadata& metadata, const tc::ShardingOfRanks& of_ranks, std::size_t size) {
  if (of_ranks.ranks >= metadata.rank_sets.size()) std::abort();
  const auto* const mesh = std::get_if<tc::MeshSharding>(&of_ranks.sharding);
  if (mesh == nullptr) return;
  for (const std::uint32_t rank : metadata.rank_sets[of_ranks.ranks]) {
    if (rank >= metadata.world_size) std::abort();
    const auto pieces = [&] {
      const cairn::fuzz::DecodingBounds bounds(size, kBytesPerInputByte);
      cairn::ByteBudget budget(size);
      return tc::local_pieces(*mesh, metadata.meshes[mesh->mesh], rank, budget);
    }();
    if (!pieces) continue;
    const auto count = cairn::element_count(pieces->local_shape);
    if (!count) std::abort();
    std::int64_t elements = 0;
    for (const tc::BoxSharding::Piece& piece : pieces->pieces) {
      if (!piece.box.within(mesh->global_shape)) std::abort();
      elements += piece.box.element_count();
    }
    if (elements != *count) std::abort();
    constexpr std::size_t kAllRanksMax = 4096;  // bytes of an input
    if (size > kAllRanksMax) break;
  }
}

void read(std::span<const std::byte> bytes) {
  const auto metadata = [&] {
    const cairn::fuzz::DecodingBounds bounds(bytes.size(), kBytesPerInputByte);
    return tc::read_saved_metadata(bytes);
  }();
  if (metadata) {
    for (const tc::SavedItem& item : metadata->items) {
      if (item.files.size() != metadata->world_size) std::abort();
      for (const tc::SavedItem::Tensor& tensor : item.tensors) {
        for (const tc::ShardingOfRanks& sharding : tensor.shardings) check_sharding(*metadata, sharding, bytes.size());
      }
    }
  }
  const cairn::fuzz::DecodingBounds bounds(bytes.size(), kBytesPerInputByte);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  static_cast<void>(cairn::json::read_json_value(text));
  static_cast<void>(tc::read_json_path(text));
  static_cast<void>(tc::read_item_path(text));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  read(std::as_bytes(std::span(data, size)));
  return 0;
}

}  // namespace torch_checkpointing_fuzz

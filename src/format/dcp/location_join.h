// LocationJoin: gives each chunk and value of a catalog the location of its bytes, from DCP's storage_data.
//
// One thread at a time. Borrows the catalog, whose tensors and values must be complete and indexed.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace cairn::dcp {

class LocationJoin {
 public:
  explicit LocationJoin(Catalog& catalog);

  // The tensor or value to which an item belongs.
  struct Target {
    enum class Kind : std::uint8_t { kNothing, kTensor, kValue };
    Kind kind = Kind::kNothing;
    std::size_t index = 0;
  };
  Target find(std::string_view fqn) const;

  // Sets the location of a target's item to `location`. For a tensor, the item is the chunk at `offsets`. `hint` is the
  // chunk's position according to the writer, and is verified. An item with the target kNothing is ignored.
  void assign(const Target& target, std::optional<std::span<const std::int64_t>> offsets,
              std::optional<std::int64_t> hint, const ItemLocation& location);

  // Gives a location to the remaining chunks: chunks at equal offsets share an item, and storage_data names only the
  // first of the chunks. kCorrupt if two values share bytes of a file: the decoder gives each value separate memory,
  // and a small file could otherwise name a large value under many keys.
  Result<void> finish();

 private:
  std::span<const std::int64_t> offsets_of(const CatalogTensor& tensor, std::size_t chunk) const;
  bool begins_at(const CatalogTensor& tensor, std::size_t chunk, std::span<const std::int64_t> offsets) const;
  // The tensor's chunks ordered by their offsets; sorted at the first call.
  const std::vector<std::uint32_t>& sorted_chunks(std::size_t tensor);
  Result<void> check_values() const;

  Catalog& catalog_;
  std::unordered_map<std::size_t, std::vector<std::uint32_t>> sorted_;  // by index of the tensor
};

}  // namespace cairn::dcp

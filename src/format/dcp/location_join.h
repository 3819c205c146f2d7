// LocationJoin: gives each chunk and value of a catalog the place of its bytes, out of DCP's storage_data.
//
// One thread at a time; borrows the catalog, whose tensors and values must be complete and indexed.
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

  // Whose item it is.
  struct Target {
    enum class Kind : std::uint8_t { kNothing, kTensor, kValue };
    Kind kind = Kind::kNothing;
    std::size_t index = 0;
  };
  Target find(std::string_view fqn) const;

  // The item lies at `location`; of a tensor, it is that of the chunks which begin at `offsets`. `hint` is the position
  // of the chunk if the writer was right. An item that belongs to nothing is passed over.
  void assign(const Target& target, std::optional<std::span<const std::int64_t>> offsets,
              std::optional<std::int64_t> hint, const ItemLocation& location);

  // Equal chunks share an item, and the storage names only one of them: the others get its place here. kCorrupt if two
  // values share bytes of a file: each is decoded into memory of its own, so a small file could name one large value
  // under many keys.
  Result<void> finish();

 private:
  std::span<const std::int64_t> offsets_of(const CatalogTensor& tensor, std::size_t chunk) const;
  bool begins_at(const CatalogTensor& tensor, std::size_t chunk, std::span<const std::int64_t> offsets) const;
  // The tensor's chunks by their offsets, sorted when first asked for.
  const std::vector<std::uint32_t>& sorted_chunks(std::size_t tensor);
  Result<void> check_values() const;

  Catalog& catalog_;
  std::unordered_map<std::size_t, std::vector<std::uint32_t>> sorted_;  // by index of the tensor
};

}  // namespace cairn::dcp

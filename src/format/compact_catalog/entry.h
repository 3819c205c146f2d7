// CatalogEntry: a key in a block of the compact catalog, before its chunks are expanded.
//
// Memory is in proportion to the coded bytes: a grid of very many chunks is a few numbers.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/byte_budget.h"
#include "format/compact_catalog/coding.h"
#include "format/compact_catalog/run_column.h"
#include "format/manifest/varint.h"

namespace cairn::compact_catalog {

// Bounds for the numbers of an entry, from the footer.
struct EntryBounds {
  std::uint64_t chunk_count = 0;  // a key has at most so many chunks
  std::uint32_t file_count = 0;
};

// The chunks of a key, or of a group of a key, as columns.
struct ChunkColumns {
  std::vector<RunColumn> boxes;   // by dimension the offsets, then the sizes; empty for a grid
  std::vector<RunColumn> places;  // files, offsets, lengths

  // kCorrupt if the place cannot be.
  Result<ItemLocation> location(std::uint64_t index, const EntryBounds& bounds) const;
};
struct ExpectedPlace {
  std::int64_t file = 0;
  std::int64_t end = 0;
  std::int64_t length = 0;
};
Result<ChunkColumns> read_columns(manifest::CodedReader& reader, std::size_t box_dimensions, std::uint64_t count,
                                  const ExpectedPlace& expected);

// Chunks that lie outside the block. The box around the chunks is by dimension; empty for a grid.
struct ChunkGroup {
  std::uint64_t offset = 0;  // from the start of the catalog
  std::uint64_t length = 0;
  std::uint32_t checksum = 0;
};

struct CatalogEntry {
  std::string_view fqn;  // valid until the next entry
  bool is_tensor = false;
  bool requires_grad = false;
  DType dtype = DType::kFloat32;
  Extents shape;
  SharedExtents strides;  // null: none are recorded
  ChunkForm form = ChunkForm::kWhole;
  std::uint64_t chunk_count = 1;  // 1 for a value
  std::vector<RunColumn> cuts;    // of a grid: by dimension the sizes of the cells
  ItemLocation location;          // of a value, and of a chunk that is the whole tensor
  ChunkColumns columns;           // unless there are groups
  std::vector<ChunkGroup> groups;
  std::vector<RunColumn> group_boxes;  // by dimension the begins, then the ends; empty for a grid
};

// Reads the entries of a block in order.
class BlockReader {
 public:
  // `block` outlives the reader; `offset` is its place in the file, for errors.
  BlockReader(std::span<const std::byte> block, std::uint64_t offset, const EntryBounds& bounds)
      : reader_(block, offset), bounds_(bounds), names_(block.size()) {}
  bool at_end() const { return reader_.left() == 0; }
  // The entry is valid until the next call. kCorrupt for a damaged block, kUnsafe if few bytes stand for very long
  // names.
  Result<const CatalogEntry*> next();

 private:
  Result<void> read_name();
  Result<void> read_tensor(std::uint8_t bits);
  Result<void> read_strides();
  Result<void> read_grid();
  Result<void> read_groups();
  Result<void> read_location();

  manifest::CodedReader reader_;
  EntryBounds bounds_;
  ByteBudget names_;  // a caller looks at each name, and few bytes may stand for long names
  ExpectedPlace expected_;
  CatalogEntry entry_;
  std::string fqn_;
};

}  // namespace cairn::compact_catalog

// ChunkGrid: the chunks of a tensor that are all cells of a grid, numbered row-major.
//
// A view of its parts, which outlive it. A cell is found by a search in the cuts of each dimension: the cost does not
// depend on the number of cells.
#pragma once

#include <cairn/tensor.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "format/compact_catalog/run_column.h"

namespace cairn::compact_catalog {

class ChunkGrid {
 public:
  // `cuts` are by dimension the sizes of the cells, with their sums computed; the sum is the size of the dimension.
  ChunkGrid(const Extents& shape, std::span<const RunColumn> cuts) : shape_(shape), cuts_(cuts) {}

  // The number of cells that have elements in common with `box`. 0 if `box` has another number of dimensions.
  std::uint64_t count_in(const Box& box) const;
  // Appends the numbers of these cells, ascending.
  void append_chunks_in(const Box& box, std::vector<std::uint64_t>& chunks) const;
  // Appends the offsets of a cell, then its sizes.
  void append_box(std::uint64_t chunk, std::vector<std::int64_t>& boxes) const;

 private:
  // Half-open.
  struct Range {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };
  // The cells of dimension `d` that overlap [begin, end).
  Range cells_in(std::size_t d, std::int64_t begin, std::int64_t end) const;
  // Empty if no cell overlaps.
  std::vector<Range> ranges_in(const Box& box) const;

  const Extents& shape_;
  std::span<const RunColumn> cuts_;
};

}  // namespace cairn::compact_catalog

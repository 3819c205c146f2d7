#include "format/compact_catalog/chunk_grid.h"

#include <algorithm>

namespace cairn::compact_catalog {

ChunkGrid::Range ChunkGrid::cells_in(std::size_t d, std::int64_t begin, std::int64_t end) const {
  end = std::min(end, shape_[d]);
  if (begin >= end) return {};
  // The first cell with an end behind `position`.
  const auto cell_at = [this, d](std::int64_t position) {
    std::uint64_t low = 0;
    std::uint64_t high = cuts_[d].size();
    while (low < high) {
      const std::uint64_t middle = low + (high - low) / 2;
      if (cuts_[d].sum_before(middle + 1) > position) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  };
  return {cell_at(begin), cell_at(end - 1) + 1};
}

std::vector<ChunkGrid::Range> ChunkGrid::ranges_in(const Box& box) const {
  std::vector<Range> ranges;
  if (box.dimensions() != cuts_.size()) return ranges;
  for (std::size_t d = 0; d < cuts_.size(); ++d) {
    const Range range = cells_in(d, box.offsets()[d], box.offsets()[d] + box.sizes()[d]);
    if (range.begin == range.end) return {};
    ranges.push_back(range);
  }
  return ranges;
}

std::uint64_t ChunkGrid::count_in(const Box& box) const {
  const std::vector<Range> ranges = ranges_in(box);
  std::uint64_t count = ranges.empty() ? 0 : 1;
  for (const Range& range : ranges) count *= range.end - range.begin;  // at most the number of chunks
  return count;
}

void ChunkGrid::append_chunks_in(const Box& box, std::vector<std::uint64_t>& chunks) const {
  const std::vector<Range> ranges = ranges_in(box);
  if (ranges.empty()) return;
  std::vector<std::uint64_t> cell(ranges.size());
  for (std::size_t d = 0; d < ranges.size(); ++d) cell[d] = ranges[d].begin;
  for (;;) {
    std::uint64_t chunk = 0;
    for (std::size_t d = 0; d < cell.size(); ++d) chunk = chunk * cuts_[d].size() + cell[d];
    chunks.push_back(chunk);
    std::size_t d = cell.size();
    while (d-- > 0) {
      if (++cell[d] < ranges[d].end) break;
      cell[d] = ranges[d].begin;
      if (d == 0) return;
    }
  }
}

void ChunkGrid::append_box(std::uint64_t chunk, std::vector<std::int64_t>& boxes) const {
  const std::size_t first = boxes.size();
  const std::size_t dimensions = cuts_.size();
  boxes.resize(first + 2 * dimensions);
  for (std::size_t d = dimensions; d-- > 0;) {
    const std::uint64_t cell = chunk % cuts_[d].size();
    chunk /= cuts_[d].size();
    boxes[first + d] = cuts_[d].sum_before(cell);
    boxes[first + dimensions + d] = cuts_[d][cell];
  }
}

}  // namespace cairn::compact_catalog

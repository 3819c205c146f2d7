#include "plan/chunk_index.h"

#include <algorithm>
#include <span>
#include <string>

#include "plan/box_overlap.h"
#include "plan/box_tiling.h"

namespace cairn::plan {
namespace {

std::int64_t begin_of(const CatalogTensor& tensor, std::size_t chunk, std::size_t dimension) {
  return tensor.boxes[chunk * 2 * tensor.shape.size() + dimension];
}
std::int64_t size_of(const CatalogTensor& tensor, std::size_t chunk, std::size_t dimension) {
  return tensor.boxes[(chunk * 2 + 1) * tensor.shape.size() + dimension];
}

std::span<const std::int64_t> box_numbers(const CatalogTensor& tensor, std::size_t chunk) {
  const std::size_t count = 2 * tensor.shape.size();
  return std::span(tensor.boxes).subspan(chunk * count, count);
}

std::size_t most_divided_dimension(const CatalogTensor& tensor) {
  std::size_t best = 0;
  std::size_t best_count = 0;
  std::vector<std::int64_t> begins(tensor.chunk_count());
  for (std::size_t dimension = 0; dimension < tensor.shape.size(); ++dimension) {
    for (std::size_t chunk = 0; chunk < begins.size(); ++chunk) begins[chunk] = begin_of(tensor, chunk, dimension);
    std::sort(begins.begin(), begins.end());
    const auto distinct = static_cast<std::size_t>(std::unique(begins.begin(), begins.end()) - begins.begin());
    if (distinct > best_count) {
      best = dimension;
      best_count = distinct;
    }
  }
  return best;
}

}  // namespace

ChunkIndex::ChunkIndex(const CatalogTensor& tensor) : tensor_(tensor) {
  if (tensor.shape.empty()) return;
  if (tensor.chunk_count() > 1) dimension_ = most_divided_dimension(tensor);
  intervals_.reserve(tensor.chunk_count());
  for (std::size_t chunk = 0; chunk < tensor.chunk_count(); ++chunk) {
    const std::int64_t begin = begin_of(tensor, chunk, dimension_);
    intervals_.push_back({begin, begin + size_of(tensor, chunk, dimension_), chunk});
  }
  // At equal begins, sort by the whole box: repeated chunks are then neighbours.
  std::stable_sort(intervals_.begin(), intervals_.end(), [&tensor](const Interval& a, const Interval& b) {
    if (a.begin != b.begin) return a.begin < b.begin;
    const auto box_a = box_numbers(tensor, a.chunk);
    const auto box_b = box_numbers(tensor, b.chunk);
    return std::lexicographical_compare(box_a.begin(), box_a.end(), box_b.begin(), box_b.end());
  });
  std::int64_t end = 0;
  for (const Interval& interval : intervals_) ends_so_far_.push_back(end = std::max(end, interval.end));
}

std::vector<ReadItem> ChunkIndex::overlaps_with(const Box& wanted) const {
  std::vector<ReadItem> items;
  if (tensor_.shape.empty()) {  // a 0-d tensor: every chunk holds its one element
    if (tensor_.chunk_count() > 0) items.push_back({0, Box()});
    return items;
  }
  const std::int64_t begin = wanted.offsets()[dimension_];
  const std::int64_t end = begin + wanted.sizes()[dimension_];
  const auto first = std::upper_bound(ends_so_far_.begin(), ends_so_far_.end(), begin) - ends_so_far_.begin();
  for (auto interval = intervals_.begin() + first; interval != intervals_.end() && interval->begin < end; ++interval) {
    if (interval->end <= begin) continue;
    const Box saved = tensor_.chunk(interval->chunk);
    std::optional<Box> overlap = intersection(saved, wanted);
    if (!overlap) continue;
    const bool repeated = !items.empty() && tensor_.chunk(items.back().chunk) == saved;
    if (!repeated) items.push_back({interval->chunk, std::move(*overlap)});
  }
  return items;
}

Result<std::vector<ReadItem>> ChunkIndex::reads_for(const Box& wanted) const {
  if (wanted.element_count() == 0) return std::vector<ReadItem>();
  std::vector<ReadItem> items = overlaps_with(wanted);
  std::int64_t covered = 0;
  for (const ReadItem& item : items) {
    if (__builtin_add_overflow(covered, item.overlap.element_count(), &covered)) break;
  }
  std::vector<std::int64_t> boxes;
  boxes.reserve(items.size() * 2 * wanted.dimensions());
  for (const ReadItem& item : items) {
    boxes.insert(boxes.end(), item.overlap.offsets().begin(), item.overlap.offsets().end());
    boxes.insert(boxes.end(), item.overlap.sizes().begin(), item.overlap.sizes().end());
  }
  if (items.size() <= 1 ? covered == wanted.element_count() : is_tiling(wanted, boxes)) return items;
  // The read will fail. The rest only determines the error text, and may give up early.
  constexpr std::size_t kStepsPerChunk = 1000;
  const auto clash = find_overlap(wanted.dimensions(), boxes, items.size(), kStepsPerChunk * items.size());
  if (clash || covered == wanted.element_count()) {
    Error error = Error(ErrorCode::kCorrupt, "saved chunks overlap").key(tensor_.fqn);
    if (!clash) return error;
    return std::move(error).actual("chunk " + to_string(tensor_.chunk(items[clash->first].chunk)) + " and chunk " +
                                   to_string(tensor_.chunk(items[clash->second].chunk)));
  }
  return Error(ErrorCode::kCorrupt, "saved chunks do not cover the tensor")
      .key(tensor_.fqn)
      .expected(std::to_string(wanted.element_count()) + " elements of " + to_string(wanted))
      .actual(std::to_string(covered) + " in " + std::to_string(items.size()) + " chunks");
}

}  // namespace cairn::plan

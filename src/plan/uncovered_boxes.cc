#include "plan/uncovered_boxes.h"

#include <algorithm>
#include <utility>

namespace cairn::plan {
namespace {

// The numbers of one box.
struct BoxNumbers {
  std::span<const std::int64_t> offsets;
  std::span<const std::int64_t> sizes;
};

bool meet(const Box& part, const BoxNumbers& box) {
  for (std::size_t d = 0; d < part.dimensions(); ++d) {
    const std::int64_t begin = std::max(part.offsets()[d], box.offsets[d]);
    const std::int64_t end = std::min(part.offsets()[d] + part.sizes()[d], box.offsets[d] + box.sizes[d]);
    if (begin >= end) return false;
  }
  return true;
}

// Appends what `box` leaves of `part`, which it meets: in each dimension the slices before and behind the box, within
// the box in the dimensions before.
void append_rest(const Box& part, const BoxNumbers& box, std::vector<Box>& rest) {
  Extents offsets = part.offsets();
  Extents sizes = part.sizes();
  const auto add = [&](std::size_t d, std::int64_t begin, std::int64_t end) {
    if (begin >= end) return;
    Extents slice_offsets = offsets;
    Extents slice_sizes = sizes;
    slice_offsets[d] = begin;
    slice_sizes[d] = end - begin;
    rest.push_back(Box::make(std::move(slice_offsets), std::move(slice_sizes)).value());
  };
  for (std::size_t d = 0; d < part.dimensions(); ++d) {
    const std::int64_t part_end = offsets[d] + sizes[d];
    const std::int64_t begin = std::max(offsets[d], box.offsets[d]);
    const std::int64_t end = std::min(part_end, box.offsets[d] + box.sizes[d]);
    add(d, offsets[d], begin);
    add(d, end, part_end);
    offsets[d] = begin;
    sizes[d] = end - begin;
  }
}

}  // namespace

std::optional<std::vector<Box>> uncovered_boxes(const Box& block, std::span<const std::int64_t> boxes,
                                                std::size_t parts_max) {
  const std::size_t dimensions = block.dimensions();
  if (block.element_count() == 0) return std::vector<Box>();
  std::vector<Box> parts{block};
  if (dimensions == 0) return boxes.empty() ? std::move(parts) : std::vector<Box>();
  for (std::size_t at = 0; at < boxes.size(); at += 2 * dimensions) {
    const BoxNumbers box{boxes.subspan(at, dimensions), boxes.subspan(at + dimensions, dimensions)};
    std::vector<Box> left;
    for (Box& part : parts) {
      if (meet(part, box)) {
        append_rest(part, box, left);
      } else {
        left.push_back(std::move(part));
      }
    }
    if (left.size() > parts_max) return std::nullopt;
    parts = std::move(left);
  }
  return parts;
}

}  // namespace cairn::plan

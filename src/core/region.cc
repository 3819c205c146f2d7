#include "core/region.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

namespace cairn {
namespace {

// Copies `count` items of `Bytes` bytes each; consecutive items are `target_step` and `source_step` bytes apart.
template <std::size_t Bytes>
void copy_steps(std::byte* target, std::ptrdiff_t target_step, const std::byte* source, std::ptrdiff_t source_step,
                std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    std::memcpy(target, source, Bytes);
    target += target_step;
    source += source_step;
  }
}

struct Side {
  std::byte* target;
  std::ptrdiff_t target_step;
  const std::byte* source;
  std::ptrdiff_t source_step;
};

void copy_run(const Side& side, std::size_t item_bytes, std::int64_t count) {
  const auto item = static_cast<std::ptrdiff_t>(item_bytes);
  if (side.target_step == item && side.source_step == item) {
    std::memcpy(side.target, side.source, static_cast<std::size_t>(count) * item_bytes);
    return;
  }
  switch (item_bytes) {
    case 1: return copy_steps<1>(side.target, side.target_step, side.source, side.source_step, count);
    case 2: return copy_steps<2>(side.target, side.target_step, side.source, side.source_step, count);
    case 4: return copy_steps<4>(side.target, side.target_step, side.source, side.source_step, count);
    case 8: return copy_steps<8>(side.target, side.target_step, side.source, side.source_step, count);
    case 16: return copy_steps<16>(side.target, side.target_step, side.source, side.source_step, count);
    default: assert(false && "no dtype has items of this size");
  }
}

}  // namespace

Region::Region(const Extents& sizes, const Extents& file_strides, const Extents& memory_strides) {
  std::vector<Dimension> dimensions;
  bool empty = false;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    assert(file_strides[i] >= 0);
    empty = empty || sizes[i] == 0;
    if (sizes[i] != 1) dimensions.push_back({sizes[i], file_strides[i], memory_strides[i]});
  }
  if (empty) {
    run_count_ = 0;
    return;
  }
  std::stable_sort(dimensions.begin(), dimensions.end(),
                   [](const Dimension& a, const Dimension& b) { return a.file_stride > b.file_stride; });
  for (const Dimension& next : dimensions) {
    file_extent_ += (next.size - 1) * next.file_stride;
    // If both layouts continue a dimension without a gap into the next dimension, the two dimensions are merged.
    if (!outer_.empty()) {
      Dimension& last = outer_.back();
      if (last.file_stride == next.file_stride * next.size && last.memory_stride == next.memory_stride * next.size) {
        last = {last.size * next.size, next.file_stride, next.memory_stride};
        continue;
      }
    }
    outer_.push_back(next);
  }
  file_extent_ += 1;
  if (!outer_.empty()) {
    inner_ = outer_.back();
    outer_.pop_back();
  }
  for (const Dimension& dimension : outer_) run_count_ *= dimension.size;
}

Run Region::run(std::int64_t index) const {
  Run result{0, 0, inner_.size};
  for (std::size_t i = outer_.size(); i-- > 0;) {
    const std::int64_t digit = index % outer_[i].size;
    index /= outer_[i].size;
    result.file_offset += digit * outer_[i].file_stride;
    result.memory_offset += digit * outer_[i].memory_stride;
  }
  return result;
}

std::int64_t Region::first_run_beyond(std::int64_t file_offset) const {
  std::int64_t low = 0;
  std::int64_t high = run_count_;
  const std::int64_t last_of_run = (inner_.size - 1) * inner_.file_stride;
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (run(middle).file_offset + last_of_run >= file_offset) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

void Region::clip(Run& run, std::int64_t begin, std::int64_t end) const {
  const std::int64_t step = inner_.file_stride;
  if (step == 0) return;                               // a run of one element
  const auto steps_up_to = [&](std::int64_t offset) {  // elements of the run before `offset`
    return offset <= run.file_offset ? 0 : std::min(run.count, (offset - run.file_offset + step - 1) / step);
  };
  const std::int64_t skipped = steps_up_to(begin);
  run.count = steps_up_to(end) - skipped;
  run.file_offset += skipped * step;
  run.memory_offset += skipped * inner_.memory_stride;
}

void gather(const Region& region, std::size_t item_bytes, const std::byte* memory, std::int64_t begin,
            std::span<std::byte> file_bytes) {
  const auto item = static_cast<std::ptrdiff_t>(item_bytes);
  const std::int64_t end = begin + static_cast<std::int64_t>(file_bytes.size() / item_bytes);
  region.for_runs(begin, end, [&](const Run& run) {
    copy_run({file_bytes.data() + (run.file_offset - begin) * item, region.file_step() * item,
              memory + run.memory_offset * item, region.memory_step() * item},
             item_bytes, run.count);
  });
}

void scatter(const Region& region, std::size_t item_bytes, std::span<const std::byte> file_bytes, std::int64_t begin,
             std::byte* memory) {
  const auto item = static_cast<std::ptrdiff_t>(item_bytes);
  const std::int64_t end = begin + static_cast<std::int64_t>(file_bytes.size() / item_bytes);
  region.for_runs(begin, end, [&](const Run& run) {
    copy_run({memory + run.memory_offset * item, region.memory_step() * item,
              file_bytes.data() + (run.file_offset - begin) * item, region.file_step() * item},
             item_bytes, run.count);
  });
}

}  // namespace cairn

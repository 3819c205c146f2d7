// Region: a block of elements in two layouts, the file's and the memory's, traversed in the file's order.
//
// A value; pure. Offsets and lengths count elements from the block's first element. Every load scatters through a
// Region, and every save of a non-contiguous tensor gathers through a Region.
#pragma once

#include <cairn/tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cairn {

// `count` elements in a row, `file_step` apart in the file and `memory_step` apart in memory.
struct Run {
  std::int64_t file_offset;
  std::int64_t memory_offset;
  std::int64_t count;
};

class Region {
 public:
  // `file_strides` must not be negative, and no two elements may have the same file offset. `memory_strides` may be any
  // numbers.
  Region(const Extents& sizes, const Extents& file_strides, const Extents& memory_strides);

  // Runs ascend in file_offset.
  std::int64_t run_count() const noexcept { return run_count_; }
  std::int64_t run_length() const noexcept { return inner_.size; }
  std::int64_t file_step() const noexcept { return inner_.file_stride; }
  std::int64_t memory_step() const noexcept { return inner_.memory_stride; }
  std::int64_t element_count() const noexcept { return run_count_ * inner_.size; }
  // One past the last file offset of the block.
  std::int64_t file_extent() const noexcept { return file_extent_; }
  // Whether both layouts are contiguous: a single copy moves the whole block.
  bool is_linear() const noexcept { return run_count_ <= 1 && file_step() == 1 && memory_step() == 1; }

  Run run(std::int64_t index) const;
  // The first run that ends beyond `file_offset`; run_count() if no run does.
  std::int64_t first_run_beyond(std::int64_t file_offset) const;

  // Visits the runs, clipped to file offsets in [begin, end).
  template <typename Visit>
  void for_runs(std::int64_t begin, std::int64_t end, Visit&& visit) const {
    for (std::int64_t index = first_run_beyond(begin); index < run_count_; ++index) {
      Run next = run(index);
      if (next.file_offset >= end) return;
      clip(next, begin, end);
      if (next.count > 0) visit(next);
    }
  }

 private:
  struct Dimension {
    std::int64_t size = 1;
    std::int64_t file_stride = 1;
    std::int64_t memory_stride = 1;
  };
  void clip(Run& run, std::int64_t begin, std::int64_t end) const;

  std::vector<Dimension> outer_;  // slowest in the file first
  Dimension inner_;               // the run
  std::int64_t run_count_ = 1;
  std::int64_t file_extent_ = 0;
};

// Moves the elements with file offsets in [begin, end). `file_bytes` holds exactly these elements. `memory` points at
// the block's first element.
void gather(const Region& region, std::size_t item_bytes, const std::byte* memory, std::int64_t begin,
            std::span<std::byte> file_bytes);
void scatter(const Region& region, std::size_t item_bytes, std::span<const std::byte> file_bytes, std::int64_t begin,
             std::byte* memory);

}  // namespace cairn

// ChunkIndex: finds the saved chunks that make up a wanted box.
//
// Pure; has no knowledge of files or bytes.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>

#include <cstdint>
#include <vector>

namespace cairn::plan {

// The wanted part of saved chunk `chunk`, in the tensor's coordinates.
struct ReadItem {
  std::size_t chunk;
  Box overlap;
};

// The chunks of one tensor, sorted to find the chunks that overlap a box without a scan of all chunks.
class ChunkIndex {
 public:
  explicit ChunkIndex(const CatalogTensor& tensor);

  // The reads for `wanted`, each element once: of repeated chunks only one is read. Fails with kCorrupt if saved chunks
  // overlap or leave a part of `wanted` uncovered. A box without elements needs no read.
  Result<std::vector<ReadItem>> reads_for(const Box& wanted) const;

 private:
  struct Interval {
    std::int64_t begin;
    std::int64_t end;
    std::size_t chunk;
  };
  std::vector<ReadItem> overlaps_with(const Box& wanted) const;

  const CatalogTensor& tensor_;
  std::size_t dimension_ = 0;              // the dimension with the most different begins
  std::vector<Interval> intervals_;        // by begin, then by box
  std::vector<std::int64_t> ends_so_far_;  // the largest end among intervals_[0..i]
};

}  // namespace cairn::plan

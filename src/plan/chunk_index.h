// ChunkIndex: which saved chunks a wanted box is put together from.
//
// Pure; nothing here knows files or bytes.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>

#include <cstdint>
#include <vector>

namespace cairn::plan {

// The part of saved chunk `chunk` that is wanted, in the tensor's coordinates.
struct ReadItem {
  std::size_t chunk;
  Box overlap;
};

// The chunks of one tensor, sorted so that those which meet a box are found without looking at all.
class ChunkIndex {
 public:
  explicit ChunkIndex(const CatalogTensor& tensor);

  // What to read for `wanted`, each element once: chunks that are repeated count once. Fails with kCorrupt if saved
  // chunks overlap or leave a part of `wanted` uncovered. A box without elements needs nothing.
  Result<std::vector<ReadItem>> reads_for(const Box& wanted) const;

 private:
  struct Interval {
    std::int64_t begin;
    std::int64_t end;
    std::size_t chunk;
  };
  std::vector<ReadItem> overlaps_with(const Box& wanted) const;

  const CatalogTensor& tensor_;
  std::size_t dimension_ = 0;              // along which the chunks differ most
  std::vector<Interval> intervals_;        // by begin, then by box
  std::vector<std::int64_t> ends_so_far_;  // the largest end among intervals_[0..i]
};

}  // namespace cairn::plan

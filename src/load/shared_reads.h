// SharedReads: finds the reads of a load that several ranks of one host have in common, so that the storage is read
// once for all of them, through the page cache of the host.
//
// The reads of a rank form groups. A rank tells a number for each of its groups; ranks with equal numbers share the
// reads of the group. Ranks whose groups differ, because each has a tensor of its own, find their common large reads by
// filters (read_filter.h). The messages have a constant size. A wrong match costs only speed: every rank reads and
// checks all bytes of its targets, whatever other ranks do, and waits for no rank.
//
// Pure: no file is read here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data_file/read_pieces.h"
#include "load/read_filter.h"

namespace cairn::checkpointer {

// Reads that differ between ranks spoil the match of their own group alone. Shards differ in most jobs; small tensors
// may be a rank's own, as states of random generators are.
enum class ReadGroup : std::uint8_t { kLargeTensors, kSmallTensors, kShards };
inline constexpr std::size_t kReadGroupCount = 3;

// `covers_tensor`: the target holds the whole tensor, and not only a shard.
ReadGroup group_of(const data_file::TensorRead& read, bool covers_tensor);

class SharedReads {
 public:
  // By group: a number that stands for the host and for the ranges of the group's reads, in any order. 0: no reads.
  using Numbers = std::array<std::uint64_t, kReadGroupCount>;

  // `groups` has the group of each read. `host` is equal for all processes with a common page cache; empty if unknown,
  // and then nothing is shared.
  static Numbers numbers_of(const std::vector<data_file::TensorRead>& reads, const std::vector<ReadGroup>& groups,
                            std::string_view host);

  // The filter of a rank's large reads. `host` as above.
  static ReadFilter filter_of(const std::vector<data_file::TensorRead>& reads, std::string_view host,
                              std::size_t rank_count);

  // Sets the sharers of each read of rank `rank`. `by_rank` has the numbers of all ranks, and `filters` their filters.
  static void mark(std::vector<data_file::TensorRead>& reads, const std::vector<ReadGroup>& groups,
                   const std::vector<Numbers>& by_rank, const std::vector<ReadFilter>& filters, std::size_t rank);

  static constexpr std::size_t kEncodedBytes = kReadGroupCount * sizeof(std::uint64_t);
  static std::string encode(const Numbers& numbers);
  // The numbers at the begin of `bytes`; all 0 if `bytes` is too short.
  static Numbers decode(std::string_view bytes);
};

}  // namespace cairn::checkpointer

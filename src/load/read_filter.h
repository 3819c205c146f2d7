// ReadFilter: the large reads of a rank as a Bloom filter, in a constant number of bytes. The other ranks of the host
// find the reads that they have in common with the rank, although the rank has other reads of its own.
//
// A filter may hold a read that the rank lacks. Such a wrong match costs only speed (shared_reads.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cairn::checkpointer {

class ReadFilter {
 public:
  // The same for all ranks of a group of `rank_count` ranks: the filters of all ranks together stay below 1 MiB.
  static std::size_t encoded_bytes(std::size_t rank_count);

  // Without reads. `host`: a number that stands for the host; 0: the rank shares nothing.
  ReadFilter(std::size_t rank_count, std::uint64_t host);

  void add(std::uint64_t read);
  bool may_hold(std::uint64_t read) const;
  std::uint64_t host() const { return host_; }

  std::string encode() const;
  // The filter at the begin of `bytes`; a filter that shares nothing if `bytes` is too short.
  static ReadFilter decode(std::string_view bytes, std::size_t rank_count);

 private:
  std::uint64_t host_;
  std::string bits_;
};

}  // namespace cairn::checkpointer

// RunColumn: a list of integers, coded as runs of equal differences: of chunks with regular boxes and places, a column
// takes a few bytes, whatever the number of chunks.
//
// A value; pure functions. docs/format.md, section 5.2, has the bytes. All integers are from 0 to 2^63 - 1. Memory is
// in proportion to the coded bytes, also if the column stands for very many integers.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "format/manifest/varint.h"

namespace cairn::compact_catalog {

// A signed integer as a varint: 0, -1, 1, -2, ... as 0, 1, 2, 3, ...
void append_signed(std::string& out, std::int64_t value);
Result<std::int64_t> read_signed(manifest::CodedReader& reader);

class RunColumn {
 public:
  // Appends `values`, none of which is negative. The first value is coded as the difference from `expected`, which is
  // not negative.
  static void append(std::string& out, std::span<const std::int64_t> values, std::int64_t expected = 0);
  // Reads `count` integers. kCorrupt if an integer is negative or too large, or if the runs have another count.
  static Result<RunColumn> read(manifest::CodedReader& reader, std::uint64_t count, std::int64_t expected = 0);

  std::uint64_t size() const { return count_; }
  // `index` is less than size().
  std::int64_t operator[](std::uint64_t index) const;
  // The smallest value; 0 for an empty column.
  std::int64_t smallest() const;
  // The sum of all values before `index`, which is at most size(). Only for a column whose sum() has succeeded.
  std::int64_t sum_before(std::uint64_t index) const;
  // The sum of all values; kCorrupt if the sum exceeds 2^63 - 1.
  Result<std::int64_t> sum();

 private:
  struct Run {
    std::uint64_t begin = 0;  // index of the first value
    std::int64_t first = 0;
    std::int64_t step = 0;
    std::int64_t sum_before = 0;  // of all values of earlier runs; set by sum()
  };
  const Run& run_of(std::uint64_t index) const;
  std::uint64_t end_of(const Run& run) const;

  std::vector<Run> runs_;
  std::uint64_t count_ = 0;
};

}  // namespace cairn::compact_catalog

// TensorReader: carries out tensor reads by few large requests on several threads. Checks every byte. Reads directly
// into the target where file and memory are aligned, and through a small buffer otherwise.
#pragma once

#include <cairn/options.h>
#include <cairn/result.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "core/checked.h"
#include "core/work_count.h"
#include "data_file/brought_ranges.h"
#include "data_file/piece_delivery.h"
#include "data_file/range_fetch.h"
#include "data_file/read_pieces.h"
#include "os/page_buffer.h"

namespace cairn::data_file {

struct ReadOptions : DeliveryOptions {
  std::size_t thread_count = 4;
  bool direct_io = true;
  std::function<bool()> interrupted = {};
  // If set: used instead of a buffer of the call's own; at least kReadBufferBytes. With one thread and without
  // `interrupted`.
  os::PageBuffer* buffer = nullptr;
  // If set: gets the ranges that the call brings into the page cache for the sharers of a read, and that would
  // otherwise be read past the page cache.
  BroughtRanges* brought = nullptr;
  WorkCount* count = nullptr;  // if set: gets the bytes to read, and the bytes read
  // If set: called once for each read that has ended, as soon as it has, by the threads that read, and at the same time
  // by several. The bytes are then read in the order of the reads, a failure of one read does not end the others, and
  // read_tensors() returns no failure of a read. The reading threads call `interrupted`, too; after it has returned
  // true, reads may end untold.
  std::function<void(std::size_t read, const Result<void>& outcome)> ended = {};
};
// Whole huge pages: a request into small pages has many segments, and is two to three times as slow.
inline constexpr std::uint64_t kReadBufferBytes = align_up(kBatchBytesMax + kFetchMarginBytes, os::kHugePageBytes);

struct ReadCounts {
  std::uint64_t bytes_needed = 0;
  std::uint64_t bytes_read = 0;
};

// With one thread and without `interrupted`, works on the calling thread. On failure targets are partly written.
// kCorrupt names key, file and offset of the checksum that differs. Memory: a buffer of kReadBufferBytes for each
// thread.
Result<ReadCounts> read_tensors(const std::vector<TensorRead>& reads, const ReadOptions& options);

}  // namespace cairn::data_file

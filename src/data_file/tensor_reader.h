// TensorReader: carries out tensor reads by few large requests on several threads. Checks every byte. Reads directly
// into the target where file and memory are aligned, and through a small buffer otherwise.
#pragma once

#include <cairn/result.h>
#include <cairn/verify_level.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "data_file/read_pieces.h"

namespace cairn::data_file {

struct ReadOptions {
  Verify verify = Verify::kNeeded;
  std::size_t thread_count = 4;
  bool direct_io = true;
  std::function<bool()> interrupted = {};
};

struct ReadCounts {
  std::uint64_t bytes_needed = 0;
  std::uint64_t bytes_read = 0;
};

// With one thread and without `interrupted`, works on the calling thread. On failure targets are partly written.
// kCorrupt names key, file and offset of the checksum that differs. Memory: a buffer of 4 MiB for each thread.
Result<ReadCounts> read_tensors(const std::vector<TensorRead>& reads, const ReadOptions& options);

}  // namespace cairn::data_file

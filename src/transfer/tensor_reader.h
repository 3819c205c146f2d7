// TensorReader: carries out tensor reads: few large requests on several threads, every byte checked, straight into the
// target where file and memory are aligned for it, through a small buffer otherwise.
#pragma once

#include <cairn/checkpoint.h>
#include <cairn/result.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "transfer/read_pieces.h"

namespace cairn::transfer {

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

// On failure targets are partly written. kCorrupt names key, file and offset of the checksum that differs. Memory: a
// buffer of 4 MiB for each thread.
Result<ReadCounts> read_tensors(const std::vector<TensorRead>& reads, const ReadOptions& options);

}  // namespace cairn::transfer

// bench_directory: save and load of a synthetic state, beside the raw device in the same run.
#pragma once

#include <cairn/result.h>
#include <cairn/save_deadlines.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

namespace cairn {

// Bytes per second.
struct BenchRates {
  double raw_write = 0;  // a file of the state's size, four requests of 4 MiB in flight, synced
  double save = 0;       // a durable save
  double raw_read = 0;   // the file of raw_write, from the device
  double load = 0;       // with the default checks, from the device
};

struct BenchReport {
  std::uint64_t bytes = 0;  // of the state
  std::size_t tensors = 0;
  bool is_direct = false;  // whether the raw file is written and read past the page cache
  std::vector<BenchRates> rounds;
  BenchRates median;      // of each rate
  double save_ratio = 0;  // the median of save ÷ raw_write of each round
  double load_ratio = 0;  // the median of load ÷ raw_read
};

struct BenchOptions {
  std::uint64_t bytes = std::uint64_t{1} << 30;  // rounded down to 4 MiB; at least 4 MiB
  std::size_t rounds = 3;                        // at least 1
  SaveDeadlines deadlines = {};                  // of the calls into the storage, except of the loads
  // Called every few milliseconds on the calling thread. True ends the call: kCancelled.
  std::function<bool()> interrupted = {};
};

// Each round writes the raw file, saves, reads the raw file, and loads. The files lie in a new private folder
// `.cairn-bench-*` of the directory, which is removed before the call returns, whatever the result; a storage that
// hangs has two seconds for the removal. A killed process leaves the folder. Takes `bytes` of memory, and twice `bytes`
// of the disk: kNoSpace without the room on the disk, kUnavailable without the memory. Fails with kNotFound if the
// directory is missing.
Result<BenchReport> bench_directory(const std::filesystem::path& directory, const BenchOptions& options = {});

}  // namespace cairn

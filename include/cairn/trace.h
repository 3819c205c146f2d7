// merge_trace: the trace of a job as one file. With CAIRN_TRACE=DIR in its environment, each process of the job (a
// trainer, its writer process) writes its events (cairn/events.h) into a file of its own in DIR, in Chrome's trace
// format.
//
// A process is a track "rank R, trainer PID" or "rank R, writer PID"; the rank is the process id of the trace. All
// times are of CLOCK_REALTIME. The folder should be on a local disk: each operation of the process writes its lines
// there before it returns.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace cairn {

struct MergedTrace {
  std::string json;            // an object with "traceEvents", in the order of their times
  std::size_t file_count = 0;  // of processes
  std::uint64_t event_count = 0;
  std::vector<std::string> warnings;  // lines that are left out, with their files
};

// Merges the files of CAIRN_TRACE in `directory`. Lines that a dead process has left incomplete are left out. kNotFound
// without a file, kInvalidArgument if the files have more than 1 GiB.
Result<MergedTrace> merge_trace(const std::filesystem::path& directory);

}  // namespace cairn

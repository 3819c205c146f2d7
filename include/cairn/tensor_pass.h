// Options of a pass over all elements of a tensor.
#pragma once

#include <cairn/save_deadlines.h>

#include <cstddef>
#include <cstdint>
#include <functional>

namespace cairn {

struct TensorPassOptions {
  std::size_t thread_count = 4;
  bool follow_links = false;  // data files may be symbolic links
  // kUnavailable if a call that opens or reads a file takes longer than `publish`.
  SaveDeadlines deadlines = {};
  // Both functions are called every few milliseconds, on the calling thread. After `interrupted` has returned true, the
  // result is kCancelled within a second: a call into the storage that hangs is left alone.
  std::function<bool()> interrupted = {};
  std::function<void(std::uint64_t bytes_done, std::uint64_t bytes_total)> progress = {};
};

}  // namespace cairn

// Options of a pass over all elements of a tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace cairn {

struct TensorPassOptions {
  std::size_t thread_count = 4;
  bool follow_links = false;  // data files may be symbolic links
  // Both functions are called every few milliseconds, on the calling thread. True stops the pass with kCancelled.
  std::function<bool()> interrupted = {};
  std::function<void(std::uint64_t bytes_done, std::uint64_t bytes_total)> progress = {};
};

}  // namespace cairn

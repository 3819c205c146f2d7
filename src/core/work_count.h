// WorkCount: how far a piece of work is. Written by the threads that work, read by any thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace cairn {

struct WorkCount {
  std::atomic<std::uint64_t> done{0};
  std::atomic<std::uint64_t> total{0};  // 0 while unknown

  void add_done(std::uint64_t units) { done.fetch_add(units, std::memory_order_relaxed); }
  void add_total(std::uint64_t units) { total.fetch_add(units, std::memory_order_relaxed); }
};

}  // namespace cairn

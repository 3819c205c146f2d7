// as_ranks: runs work on each rank of a local group. For tests.
#pragma once

#include <cairn/collectives.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace cairn {

// Runs `work` on `count` threads, one for each rank. A rank leaves the group when its work ends. `timeout`: of the
// group.
inline void as_ranks(std::size_t count, const std::function<void(std::size_t, Collectives&)>& work,
                     std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
  std::vector<std::unique_ptr<Collectives>> group = make_local_group(count, timeout);
  std::vector<std::jthread> threads;
  for (std::size_t rank = 0; rank < count; ++rank) {
    threads.emplace_back([&work, rank, mine = std::move(group[rank])]() mutable {
      work(rank, *mine);
      mine.reset();
    });
  }
}

}  // namespace cairn

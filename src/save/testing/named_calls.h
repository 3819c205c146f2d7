// Ranks as threads, and the names of the collective calls that they make. For the tests of this folder.
#pragma once

#include <cairn/collectives.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace cairn {

inline void as_three_ranks(const std::function<void(std::size_t, Collectives&)>& work) {
  auto group = make_local_group(3, std::chrono::seconds(30));
  std::vector<std::jthread> threads;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] { work(rank, *group[rank]); });
  }
}

// Collectives over `inner` that append the names of their calls to `names`.
inline std::unique_ptr<Collectives> named_calls(Collectives& inner, std::vector<std::string>& names) {
  using Messages = std::vector<std::string>;
  CollectiveCalls calls;
  calls.rank = inner.rank();
  calls.size = inner.size();
  calls.gather = [&](std::string bytes, std::size_t root) {
    names.emplace_back("gather");
    return inner.gather(std::move(bytes), root);
  };
  calls.scatter = [&](Messages bytes, std::size_t root) {
    names.emplace_back("scatter");
    return inner.scatter(std::move(bytes), root);
  };
  calls.broadcast = [&](std::string bytes, std::size_t root) {
    names.emplace_back("broadcast");
    return inner.broadcast(std::move(bytes), root);
  };
  calls.all_gather = [&](std::string bytes) {
    names.emplace_back("all_gather");
    return inner.all_gather(std::move(bytes));
  };
  calls.barrier = [&] {
    names.emplace_back("barrier");
    return inner.barrier();
  };
  calls.smallest = [&](std::vector<std::int64_t> numbers) {
    names.emplace_back("smallest");
    return inner.smallest(std::move(numbers));
  };
  return make_collectives(std::move(calls)).value();
}

}  // namespace cairn

// Collectives made of functions: how a caller lends the engine what it has (a process group, MPI).
#pragma once

#include <cairn/collectives.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace cairn {

// One function for each call of Collectives, with the same arguments, results and errors. They are never called again
// after a failure, nor with a root that is no rank. A function may throw: that becomes kUnavailable. A scatter whose
// root has a wrong number of messages must reach the other ranks as an error, which is left to `scatter`.
struct CollectiveCalls {
  std::size_t rank = 0;
  std::size_t size = 1;
  std::function<Result<std::vector<std::string>>(std::string bytes, std::size_t root)> gather;
  std::function<Result<std::string>(std::vector<std::string> bytes, std::size_t root)> scatter;
  std::function<Result<std::string>(std::string bytes, std::size_t root)> broadcast;
  std::function<Result<std::vector<std::string>>(std::string bytes)> all_gather;
  std::function<Result<void>()> barrier;
};

// kInvalidArgument: `rank` is not less than `size`, or a function is missing.
Result<std::unique_ptr<Collectives>> make_collectives(CollectiveCalls calls);

}  // namespace cairn

// Collectives made of functions: the caller lends the engine its own transport (a process group, MPI).
#pragma once

#include <cairn/collectives.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace cairn {

// A function for each call of Collectives, with the arguments, results and errors of the call. Never called after a
// failure, nor with a root that is no rank. An exception from a function becomes kUnavailable. If the root of a scatter
// has a wrong number of messages, `scatter` itself must pass an error to the remaining ranks.
struct CollectiveCalls {
  std::size_t rank = 0;
  std::size_t size = 1;
  std::function<Result<std::vector<std::string>>(std::string bytes, std::size_t root)> gather;
  std::function<Result<std::string>(std::vector<std::string> bytes, std::size_t root)> scatter;
  std::function<Result<std::string>(std::string bytes, std::size_t root)> broadcast;
  std::function<Result<std::vector<std::string>>(std::string bytes)> all_gather;
  std::function<Result<void>()> barrier;
  // May be missing: all_gather then takes its place.
  std::function<Result<std::vector<std::int64_t>>(std::vector<std::int64_t> numbers)> smallest = {};
  // May be missing: broadcast then takes its place.
  std::function<Result<void>(std::span<std::byte> bytes, std::size_t root)> broadcast_in_place = {};
  // May be missing: the group then has no subgroups. The caller owns the result, which outlives these collectives.
  std::function<Result<Collectives*>(const std::vector<std::size_t>& ranks)> subgroup = {};
};

// kInvalidArgument: `rank` is not less than `size`, or a function that may not be missing is missing.
Result<std::unique_ptr<Collectives>> make_collectives(CollectiveCalls calls);

}  // namespace cairn

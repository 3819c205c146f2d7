// Collectives: exchange of small messages among the ranks of a save or load. The caller implements the transport:
// by a class of its own, or by make_collectives() of functions. For MPI there is cairn/mpi.h, and for threads of a
// process make_local_group().
//
// Calls of many ranks: each rank calls save(), load() or another function of Cairn with its own state and its own
// Collectives, and all ranks make their calls in the same order. A call that fails on a rank fails on all ranks, with
// the error of each failed rank in causes(). No rank waits for a rank that has given up. If the collectives fail (a
// rank was killed), the call returns the error of the collectives (kUnavailable).
#pragma once

#include <cairn/result.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace cairn {

// Messages are any bytes of any length, and differ from rank to rank.
//
// Threads: one at a time per object. All ranks make equal calls in equal order, with equal roots. A call blocks until
// the caller's part is done. A call may succeed on a rank and fail on a second rank. A return from gather, scatter or
// broadcast does not mean that the remaining ranks have returned or entered the call.
//
// Errors: kUnavailable for errors of the transport: a rank is gone, a time-out. kInvalidArgument for a root that is no
// rank, or a wrong number of messages; the ranks with a correct call then fail with kUnavailable. After an error the
// ranks are out of step: the object is unusable and refuses every later call.
class Collectives {
 public:
  virtual ~Collectives() = default;

  virtual std::size_t rank() const = 0;  // in [0, size())
  virtual std::size_t size() const = 0;  // number of ranks, at least 1

  // At `root`, returns the message of every rank, by rank; on the remaining ranks, an empty list.
  virtual Result<std::vector<std::string>> gather(std::string bytes, std::size_t root) = 0;
  // Returns the message from `root` for this rank. `bytes` at `root`: a message for each rank, by rank; ignored on the
  // remaining ranks.
  virtual Result<std::string> scatter(std::vector<std::string> bytes, std::size_t root) = 0;
  // Returns the message of `root`. `bytes` is ignored on the remaining ranks.
  virtual Result<std::string> broadcast(std::string bytes, std::size_t root) = 0;
  // Returns the message of every rank, by rank, on every rank.
  virtual Result<std::vector<std::string>> all_gather(std::string bytes) = 0;
  // Returns when every rank has called barrier().
  virtual Result<void> barrier() = 0;
  // Returns, for each place, the smallest of the ranks' numbers. Every rank must give as many numbers. Every
  // asynchronous save begins with this call. The default calls all_gather, and returns kInvalidArgument if the ranks
  // give different numbers of numbers; a transport with a reduction should use the reduction.
  virtual Result<std::vector<std::int64_t>> smallest(std::vector<std::int64_t> numbers);

  // The two calls below carry tensor data, in loads with LoadOptions::broadcast_replicas.
  //
  // Sends the bytes of `root` into the memory of the remaining ranks. Every rank gives as many bytes. The memory may
  // end its life after the call, also after a failed call. The default calls broadcast, which copies.
  virtual Result<void> broadcast_in_place(std::span<std::byte> bytes, std::size_t root);
  // Returns the collectives of some of the ranks, numbered from 0 in the order of `ranks`; null if the transport has no
  // such groups, and then null on every rank. Only these ranks call subgroup(), each with equal `ranks`: in ascending
  // order, and with its own rank. This object owns the result, and returns one object for equal ranks. A failed call of
  // a subgroup leaves the group usable. The default returns null.
  virtual Result<Collectives*> subgroup(const std::vector<std::size_t>& ranks);
};

// A transport of the caller (a process group, MPI): a function for each call of Collectives, with the arguments,
// results and errors of the call. Never called after a failure, nor with a root that is no rank. An exception from a
// function becomes kUnavailable. If the root of a scatter has a wrong number of messages, `scatter` itself must pass an
// error to the remaining ranks.
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

// Threads of a process as the ranks of a save or load. Returns a Collectives for each of `rank_count` ranks, by rank,
// for a thread each. The objects have independent lifetimes.
//
// A rank leaves the group when its object is destroyed, or when a call of the object fails. The remaining ranks can
// finish the calls that the rank has made. A call that needs a missing call of the rank fails at once, also if threads
// already wait in the call. A thread that gives up therefore only destroys its object. `timeout` is the longest wait of
// a call for the remaining ranks.
std::vector<std::unique_ptr<Collectives>> make_local_group(
    std::size_t rank_count, std::optional<std::chrono::milliseconds> timeout = std::nullopt);

}  // namespace cairn

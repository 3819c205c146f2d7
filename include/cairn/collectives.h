// Collectives: exchange of small messages among the ranks of a save or load. The caller implements the transport.
//
// Threads: one at a time per object. All ranks make equal calls in equal order, with equal roots. A call blocks until
// the caller's part is done. A call may succeed on a rank and fail on a second rank. A return from gather, scatter or
// broadcast does not mean that the remaining ranks have returned or entered the call.
//
// Errors: kUnavailable for errors of the transport: a rank is gone, a time-out. kInvalidArgument for a root that is no
// rank, or a wrong number of messages; the ranks with a correct call then fail with kUnavailable. After an error the
// ranks are out of step: the object is unusable and refuses every later call.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace cairn {

// Messages are any bytes of any length, and differ from rank to rank.
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

}  // namespace cairn

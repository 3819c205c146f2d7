// Collectives: how the ranks of one save or load pass each other a few bytes; the engine below is the caller's.
//
// Threads: one at a time per object. All ranks make the same calls in the same order, with the same roots. Calls block
// until the caller's part is done; one may succeed on a rank and fail on another, and returning from gather, scatter or
// broadcast does not mean that the other ranks have come that far.
//
// Errors: kUnavailable for what the engine below reports: a rank that is gone, a time-out. kInvalidArgument for a root
// that is no rank, or a wrong number of messages; the ranks whose call was right then fail with kUnavailable. After an
// error the ranks are no longer in step: the object must not be used again, and refuses every later call.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <string>
#include <vector>

namespace cairn {

// Messages are any bytes of any length, another one on each rank.
class Collectives {
 public:
  virtual ~Collectives() = default;

  virtual std::size_t rank() const = 0;  // in [0, size())
  virtual std::size_t size() const = 0;  // ranks that take part, at least one

  // The message of every rank, by rank, at `root`; empty elsewhere.
  virtual Result<std::vector<std::string>> gather(std::string bytes, std::size_t root) = 0;
  // The message that `root` has for this rank. `bytes`: one for each rank, by rank, at `root`; ignored elsewhere.
  virtual Result<std::string> scatter(std::vector<std::string> bytes, std::size_t root) = 0;
  // The message of `root`. `bytes` is ignored elsewhere.
  virtual Result<std::string> broadcast(std::string bytes, std::size_t root) = 0;
  // The message of every rank, by rank, on every rank.
  virtual Result<std::vector<std::string>> all_gather(std::string bytes) = 0;
  // Returns when every rank has called it.
  virtual Result<void> barrier() = 0;
};

}  // namespace cairn

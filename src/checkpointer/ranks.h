// Ranks: the steps that ranks take together, so that a failure of one is the failure of all, and nobody waits for it.
//
// One thread at a time. A rank that failed still takes every step, with its error in place of bytes. What comes back is
// either what all ranks had, or Error::of_ranks() with the failure of each; if the collective itself fails
// (kUnavailable, a rank is gone), its error.
#pragma once

#include <cairn/collectives.h>
#include <cairn/result.h>

#include <cstddef>
#include <string>
#include <vector>

#include "core/attempt.h"

namespace cairn::checkpointer {

class Ranks {
 public:
  // Null: one process alone, whose only step is its own. `collectives` outlives this object.
  Ranks(Collectives* collectives, std::size_t coordinator) : collectives_(collectives), coordinator_(coordinator) {}

  std::size_t rank() const { return collectives_ != nullptr ? collectives_->rank() : 0; }
  std::size_t size() const { return collectives_ != nullptr ? collectives_->size() : 1; }
  bool is_coordinator() const { return collectives_ == nullptr || rank() == coordinator_; }

  // What `work` returns, a Result. With other ranks an exception out of it (memory ran out, most likely) is an error
  // like any other: to leave between two steps would keep them waiting.
  template <typename Work>
  auto attempt(Work&& work) const -> decltype(work()) {
    return collectives_ == nullptr ? work() : cairn::attempt(work);
  }

  // At the coordinator: the bytes of every rank. Elsewhere: empty, or this rank's own error; whether the others did
  // well, it learns in the next step.
  Result<std::vector<std::string>> gather(Result<std::string> mine);
  // The bytes that the coordinator has for this rank, or the error that it has for all.
  Result<std::string> scatter(Result<std::vector<std::string>> all);
  // The coordinator's bytes, or its error.
  Result<std::string> broadcast(Result<std::string> bytes);
  // An outcome as this rank tells it: a failure that names no rank yet is its own. For decode_outcome().
  std::string tell(const Result<std::string>& outcome) const;
  // The bytes of every rank, on every rank.
  Result<std::vector<std::string>> all_gather(Result<std::string> mine);

 private:
  Collectives* collectives_;
  std::size_t coordinator_;
};

}  // namespace cairn::checkpointer

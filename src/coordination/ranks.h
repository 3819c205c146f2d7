// Ranks: collective steps of all ranks. A failure of one rank becomes the failure of all ranks, and no rank waits for a
// failed rank.
//
// Threads: one at a time. A rank that has failed still takes every step, with its error in place of bytes. A step
// returns the bytes of all ranks, or Error::of_ranks() with the failure of each failed rank. If the collective call
// fails (kUnavailable, a rank is gone), the step returns the error of the call.
#pragma once

#include <cairn/collectives.h>
#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/attempt.h"

namespace cairn::coordination {

class Ranks {
 public:
  // Null: one process alone; a step then returns the process's own bytes. `collectives` outlives the Ranks.
  Ranks(Collectives* collectives, std::size_t coordinator) : collectives_(collectives), coordinator_(coordinator) {}

  std::size_t rank() const { return collectives_ != nullptr ? collectives_->rank() : 0; }
  std::size_t size() const { return collectives_ != nullptr ? collectives_->size() : 1; }
  std::size_t coordinator() const { return collectives_ != nullptr ? coordinator_ : 0; }
  bool is_coordinator() const { return collectives_ == nullptr || rank() == coordinator_; }

  // Calls `work`, which returns a Result. With several ranks an exception of `work` (bad_alloc, most likely) becomes an
  // error: an exception that left the save between two steps would keep the remaining ranks waiting.
  template <typename Work>
  auto attempt(Work&& work) const -> decltype(work()) {
    return collectives_ == nullptr ? work() : cairn::attempt(work);
  }

  // At the coordinator: the bytes of every rank. On the remaining ranks: an empty list, or the rank's own error; the
  // next step reports the failures of all ranks.
  Result<std::vector<std::string>> gather(Result<std::string> mine);
  // The coordinator's bytes for this rank, or the coordinator's error for all ranks.
  Result<std::string> scatter(Result<std::vector<std::string>> all);
  // Both: every rank sends its bytes, and gets the bytes for it of `answer(all)`, a Result of a list, which the
  // coordinator calls if no rank has failed.
  template <typename Answer>
  Result<std::string> exchange(Result<std::string> mine, Answer&& answer) {
    Result<std::vector<std::string>> all = gather(std::move(mine));
    if (is_coordinator() && all) all = attempt([&] { return answer(*std::move(all)); });
    return scatter(std::move(all));
  }
  // The coordinator's bytes, or its error.
  Result<std::string> broadcast(Result<std::string> bytes);
  // Encodes an outcome for decode_outcome(). An error without a rank gets the number of this rank.
  std::string tell(const Result<std::string>& outcome) const;
  // For each place the smallest of the ranks' numbers. A rank that has failed says so by its numbers.
  Result<std::vector<std::int64_t>> smallest(std::vector<std::int64_t> mine);
  // The bytes of every rank, on every rank.
  Result<std::vector<std::string>> all_gather(Result<std::string> mine);

 private:
  Collectives* collectives_;
  std::size_t coordinator_;
};

}  // namespace cairn::coordination

// FilledEntries: which entries of a state are filled, while their reads end one after the other.
//
// Thread-safe after tell_those_without_reads().
#pragma once

#include <cairn/planned_load.h>
#include <cairn/result.h>
#include <cairn/state_dict.h>

#include <cstddef>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace cairn::checkpointer {

class FilledEntries {
 public:
  // `entries_of_reads`: for each read, the entry that it fills, wholly or in part. `filled` is called once for each of
  // the `count` entries, without a lock.
  FilledEntries(std::size_t count, std::span<const std::size_t> entries_of_reads, EntryFilled filled);

  // The entries named `fqn` are neither filled nor told.
  void leave_out(const std::string& fqn, std::span<const Entry> entries);
  // The entries of `order` come first.
  void tell_those_without_reads(std::span<const std::size_t> order);
  // A read of the entry has ended. The entry is told after its last read, with its first failure.
  void end_read(std::size_t entry, const Result<void>& outcome);
  // No further read ends: tells the entries that were not told.
  void end_all(const Error& reason);

  std::optional<Error> first_failure() const;

 private:
  struct State {
    std::size_t reads_left = 0;
    bool is_told = false;
    std::optional<Error> failure = {};
  };
  void tell(std::size_t entry, const Result<void>& outcome);

  EntryFilled filled_;
  mutable std::mutex mutex_;
  std::vector<State> entries_;
  std::optional<Error> first_failure_;
};

}  // namespace cairn::checkpointer

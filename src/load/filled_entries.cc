#include "load/filled_entries.h"

#include <utility>

namespace cairn::checkpointer {

FilledEntries::FilledEntries(std::size_t count, std::span<const std::size_t> entries_of_reads, EntryFilled filled)
    : filled_(std::move(filled)), entries_(count) {
  for (const std::size_t entry : entries_of_reads) ++entries_[entry].reads_left;
}

void FilledEntries::leave_out(const std::string& fqn, std::span<const Entry> entries) {
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].fqn == fqn) entries_[i].is_told = true;
  }
}

void FilledEntries::tell_those_without_reads(std::span<const std::size_t> order) {
  const auto tell_if_ready = [this](std::size_t entry) {
    if (entry >= entries_.size() || entries_[entry].reads_left > 0 || entries_[entry].is_told) return;
    tell(entry, {});
  };
  for (const std::size_t entry : order) tell_if_ready(entry);
  for (std::size_t entry = 0; entry < entries_.size(); ++entry) tell_if_ready(entry);
}

void FilledEntries::end_read(std::size_t entry, const Result<void>& outcome) {
  Result<void> of_entry;
  {
    const std::lock_guard lock(mutex_);
    State& state = entries_[entry];
    if (!outcome && !state.failure) state.failure = outcome.error();
    if (--state.reads_left > 0) return;
    if (state.failure) of_entry = *state.failure;
  }
  tell(entry, of_entry);
}

void FilledEntries::end_all(const Error& reason) {
  for (std::size_t entry = 0; entry < entries_.size(); ++entry) {
    if (!entries_[entry].is_told) tell(entry, reason);
  }
}

void FilledEntries::tell(std::size_t entry, const Result<void>& outcome) {
  {
    const std::lock_guard lock(mutex_);
    entries_[entry].is_told = true;
    if (!outcome && !first_failure_) first_failure_ = outcome.error();
  }
  filled_(entry, outcome);
}

std::optional<Error> FilledEntries::first_failure() const {
  const std::lock_guard lock(mutex_);
  return first_failure_;
}

}  // namespace cairn::checkpointer

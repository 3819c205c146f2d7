// ProgressTracker: the phase of a save, the bytes written, and whether the save's calls into the storage return.
#pragma once

#include <cairn/options.h>
#include <cairn/result.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "storage/operation_watch.h"

namespace cairn::commit {

// The state of a save at a moment.
struct ProgressReport {
  SavePhase phase = SavePhase::kStaging;
  std::uint64_t bytes_written = 0;
  std::uint64_t bytes_total = 0;  // of this rank's files; 0 until known
  // The call into the storage that has lasted longest.
  std::optional<storage::PendingOperation> pending = {};
};

// The reason to give up a save with this report: a pending call has exceeded `deadlines`. Nullopt if no call has.
std::optional<Error> stall_in(const ProgressReport& report, const SaveDeadlines& deadlines);

// Written by the thread that carries the save out, read by any thread.
struct ProgressTracker {
  using Phase = SavePhase;
  std::atomic<SavePhase> phase{SavePhase::kStaging};
  std::atomic<std::uint64_t> bytes_written{0};
  std::atomic<std::uint64_t> bytes_total{0};

  // `operations`: the save's calls into its storage; null if the calls are not watched.
  ProgressReport report(const storage::OperationWatch* operations) const;
};

// The report as a line of a lease, of constant length, and the inverse. decode_progress_line() returns nullopt for a
// line without a report.
std::string encode_progress_line(const ProgressReport& report);
std::optional<ProgressReport> decode_progress_line(std::string_view line);

}  // namespace cairn::commit

// ProgressTracker: where a save is, and whether it gets on.
#pragma once

#include <cairn/error.h>
#include <cairn/save_deadlines.h>
#include <cairn/save_progress.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "storage/operation_watch.h"

namespace cairn::commit {

// A save at one moment.
struct ProgressReport {
  SavePhase phase = SavePhase::kStaging;
  std::uint64_t bytes_written = 0;
  std::uint64_t bytes_total = 0;  // of this rank's files; 0 until it is known
  // The call into the storage that has lasted longest.
  std::optional<storage::PendingOperation> pending = {};
};

// Why a save with this report is given up: its pending call has lasted longer than `deadlines` allow. Nullopt if it is
// not.
std::optional<Error> stall_in(const ProgressReport& report, const SaveDeadlines& deadlines);
Error stall(const storage::PendingOperation& pending, const SaveDeadlines& deadlines);

// Written by the thread that carries the save out, read by any.
struct ProgressTracker {
  using Phase = SavePhase;
  std::atomic<SavePhase> phase{SavePhase::kStaging};
  std::atomic<std::uint64_t> bytes_written{0};
  std::atomic<std::uint64_t> bytes_total{0};

  // `operations`: the save's calls into its storage; null if they are not watched.
  ProgressReport report(const storage::OperationWatch* operations) const;
};

// The report as a line of a lease, always of one length; and back, nullopt if the line is none.
std::string encode_progress_line(const ProgressReport& report);
std::optional<ProgressReport> decode_progress_line(std::string_view line);

}  // namespace cairn::commit

#include <cairn/latest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_candidates.h"
#include "checkpoint/checkpoint_directories.h"
#include "checkpoint/save_wait.h"
#include "coordination/ranks.h"
#include "core/step_in_name.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using checkpointer::Candidate;
using checkpointer::checkpoint_directories;
using checkpointer::CheckpointDirectories;

Result<void> stop_if_interrupted(const std::function<bool()>& interrupted) {
  if (!interrupted || !interrupted()) return {};
  return Error(ErrorCode::kCancelled, "interrupted while looking for checkpoints");
}

// Reports unusable checkpoints to LatestOptions::passed_over.
class Search {
 public:
  explicit Search(const LatestOptions& options) : options_(options) {}

  Result<std::optional<fs::path>> newest_of(const std::vector<Candidate>& candidates) const {
    CAIRN_TRY_ASSIGN(const Candidate* const newest, newest_in_order(candidates));
    for (const Candidate& candidate : candidates) {
      if (!candidate.fault || (is_passed_unseen(candidate) && !checkpointer::may_be_newer(candidate, newest))) continue;
      CAIRN_TRY(pass_over(candidate, *candidate.fault));
    }
    return newest != nullptr ? std::optional(newest->directory) : std::nullopt;
  }

 private:
  // Null if no candidate with an order is whole.
  Result<const Candidate*> newest_in_order(const std::vector<Candidate>& candidates) const {
    for (const Candidate& candidate : candidates) {
      if (candidate.fault) continue;
      CAIRN_TRY(stop_if_interrupted(options_.interrupted));
      const std::optional<Error> fault = checkpointer::fault_of(candidate);
      if (!fault) return &candidate;
      CAIRN_TRY(pass_over(candidate, *fault));
    }
    return static_cast<const Candidate*>(nullptr);
  }

  // Of a directory that may hold no checkpoint at all.
  static bool is_passed_unseen(const Candidate& candidate) {
    return candidate.is_dangling || checkpointer::leaves_open(*candidate.fault);
  }

  Result<void> pass_over(const Candidate& candidate, Error reason) const {
    const std::string directory = "'" + candidate.directory.string() + "'";
    if (checkpointer::leaves_open(reason)) {
      return std::move(reason).while_doing("looking for the newest checkpoint, which may be " + directory +
                                           ": allow access, repeat the call, or move the directory out of the root");
    }
    const std::string action = "looking for the newest checkpoint: " + directory + " is passed over";
    if (options_.passed_over) options_.passed_over(std::move(reason).while_doing(action));
    return {};
  }

  const LatestOptions& options_;
};

ListedCheckpoint::State state_by_fault(const Error& fault, const Candidate& candidate) {
  const bool is_of_data_file = !candidate.fault && !candidate.is_model() && fault.file() != candidate.metadata_name;
  const bool is_incomplete = is_of_data_file && !checkpointer::leaves_open(fault);
  return is_incomplete ? ListedCheckpoint::State::kIncomplete : ListedCheckpoint::State::kUnreadable;
}

ListedCheckpoint entry_for(const Candidate& candidate) {
  ListedCheckpoint entry;
  entry.directory = candidate.directory;
  entry.step = step_in_name(candidate.directory);
  if (candidate.is_model()) entry.format = CheckpointFormat::kSafetensors;
  if (candidate.is_directory_of_files()) entry.format = CheckpointFormat::kTorchCheckpointing;
  if (!candidate.is_model() && std::isfinite(candidate.time)) entry.modified_at = candidate.time;
  entry.reason = candidate.fault ? candidate.fault : checkpointer::fault_of(candidate);
  if (entry.reason) entry.state = state_by_fault(*entry.reason, candidate);
  return entry;
}

// The rule of Search, for candidates that have all been checked.
void mark_newest(std::vector<ListedCheckpoint>& entries, const std::vector<Candidate>& candidates) {
  const auto hides = [&](const Candidate* newest) {
    return std::any_of(candidates.begin(), candidates.end(), [newest](const Candidate& candidate) {
      return candidate.fault && checkpointer::leaves_open(*candidate.fault) &&
             checkpointer::may_be_newer(candidate, newest);
    });
  };
  const bool has_checkpoints = checkpointer::has_checkpoints(candidates);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (candidates[i].is_model() && has_checkpoints) return;
    if (candidates[i].fault) continue;
    ListedCheckpoint& entry = entries[i];
    if (entry.reason && checkpointer::leaves_open(*entry.reason)) return;
    if (entry.reason) continue;
    entry.is_newest = !hides(&candidates[i]);
    return;
  }
}

Result<std::optional<fs::path>> latest_alone(const fs::path& root, const LatestOptions& options) {
  CAIRN_TRY(checkpointer::wait_for_saves(root, options.wait, options.interrupted));
  CAIRN_TRY_ASSIGN(const std::optional<CheckpointDirectories> directories, checkpoint_directories(root));
  if (!directories) {
    const Error missing = Error(ErrorCode::kNotFound, "no such directory: there is no checkpoint").file(root.string());
    if (options.passed_over) options.passed_over(missing);
    return std::optional<fs::path>();
  }
  return Search(options).newest_of(
      checkpointer::candidates_in(*directories, options.rank, checkpointer::Models::kIfAlone));
}

// The answer for the remaining ranks: empty without a checkpoint, else kFound and the directory.
constexpr char kFound = '+';

Result<std::string> answer_of(const Result<std::optional<fs::path>>& found) {
  if (!found) return found.error();
  return *found ? kFound + (*found)->native() : std::string();
}

}  // namespace

Result<std::optional<fs::path>> latest(const fs::path& root, const LatestOptions& options) {
  if (options.collectives == nullptr) return latest_alone(root, options);
  if (options.rank) {
    return Error(ErrorCode::kInvalidArgument,
                 "the ranks have one answer if they call together, and a checkpoint of one rank can't be it");
  }
  coordination::Ranks ranks(options.collectives, 0);
  Result<std::string> mine = std::string();
  if (ranks.is_coordinator()) mine = ranks.attempt([&] { return answer_of(latest_alone(root, options)); });
  CAIRN_TRY_ASSIGN(const std::string answer, ranks.broadcast(std::move(mine)));
  return answer.empty() ? std::optional<fs::path>() : std::optional<fs::path>(answer.substr(1));
}

Result<std::vector<ListedCheckpoint>> checkpoints(const fs::path& root, const ListingOptions& options) {
  CAIRN_TRY_ASSIGN(const std::optional<CheckpointDirectories> directories, checkpoint_directories(root));
  if (!directories) return Error(ErrorCode::kNotFound, "no such directory").file(root.string());
  const std::vector<Candidate> candidates =
      checkpointer::candidates_in(*directories, options.rank, checkpointer::Models::kListed);
  std::vector<ListedCheckpoint> entries;
  for (const Candidate& candidate : candidates) {
    CAIRN_TRY(stop_if_interrupted(options.interrupted));
    entries.push_back(entry_for(candidate));
  }
  mark_newest(entries, candidates);
  return entries;
}

}  // namespace cairn

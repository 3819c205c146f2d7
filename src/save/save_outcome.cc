#include "save/save_outcome.h"

#include <string_view>
#include <utility>

#include "core/attempt.h"
#include "format/manifest/outcome.h"

namespace cairn::checkpointer {
namespace {

// The decision has not reached this rank, or the remaining ranks. A commit is not undone if a rank can't be reached, so
// the error text states the known outcome.
std::string_view without_decision(const coordination::Ranks& ranks, const SaveWorker& worker) {
  if (!ranks.is_coordinator())
    return "waiting for the coordinator's decision: the save may be committed, look at the directory";
  if (!worker.may_have_committed()) return "telling the other ranks that the save has failed";
  return "telling the other ranks that the save is committed: the new checkpoint is in place";
}

Result<Committed> settle(SaveWorker& worker, std::string_view message) {
  CAIRN_TRY_ASSIGN(const DecisionMessage decision, decode_decision(message));
  const Result<std::string> outcome = manifest::decode_outcome(decision.outcome);
  if (!outcome) {
    if (!decision.files_stay) (void)worker.withdraw_files();
    return outcome.error();
  }
  CAIRN_TRY_ASSIGN(Committed committed, decode_committed(*outcome));
  if (worker.has_given_up()) return committed;  // the clean-up hung, and a warning says so
  // An exception of `interrupted` must not hide the commit.
  const Result<void> cleaned = attempt([&] { return worker.remove_own_folder(); });
  if (!cleaned) committed.warnings.push_back(not_cleaned_up(cleaned.error()));
  return committed;
}

}  // namespace

Result<Committed> share_outcome(coordination::Ranks& ranks, SaveWorker& worker,
                                const Result<std::vector<std::string>>& written,
                                const std::function<Result<std::string>()>& commit) {
  std::string decision;
  if (ranks.is_coordinator()) {
    const Result<std::string> committed = written ? ranks.attempt(commit) : written.error();
    decision = encode_decision({ranks.tell(committed), worker.may_have_committed()});
  }
  const Result<std::string> received = ranks.broadcast(std::move(decision));
  if (!received) return Error(received.error()).while_doing(without_decision(ranks, worker));
  return settle(worker, *received);
}

}  // namespace cairn::checkpointer

// 1. Finish the removals that a crash has interrupted.
// 2. Note which checkpoint is in place in each directory, and then list the checkpoints in the order of latest(): a
//    checkpoint that replaces a noted one meanwhile may be newer than the list says, and step 5 leaves it. Find the
//    newest good one. Without one nothing is removed.
// 3. Choose among the older ones: those that the rule does not keep, and that a save of Cairn has written in place.
// 4. Make the commit of the newest good one durable: its directory is synced. The process that renamed its `.metadata`
//    may have died before the sync; a power cut could then take it back when the older ones are gone.
// 5. Remove the chosen ones, the oldest first, each by commit/checkpoint_removal.cc: under the lock of its directory,
//    if the checkpoint noted in step 2 is still in place, without a pin, and if no save into the directory is under
//    way.
//
// Why at least one good checkpoint stays, with any number of processes: a process removes only checkpoints older than
// one that it has found to be good and has made durable. latest()'s order is the same for all processes. The newest
// good one of all is older than none, so no process removes it.
#include "run/pruning.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_candidates.h"
#include "checkpoint/open_calls.h"
#include "commit/checkpoint_removal.h"
#include "commit/metadata_in_place.h"
#include "commit/pin.h"
#include "core/step_in_name.h"
#include "events/operation.h"
#include "run/retention.h"

namespace cairn::run {
namespace {

namespace fs = std::filesystem;
using checkpointer::Candidate;

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Error explained(Error error, const fs::path& directory) {
  return std::move(error).while_doing("removing the checkpoint in '" + directory.string() + "'");
}

class Pruning {
 public:
  Pruning(RunRoot& root, const PruneOptions& options)
      : root_(root),
        options_(options),
        removal_(options.dry_run ? commit::Removal::kTry : commit::Removal::kDo),
        open_([&root](const fs::path& directory) { return root.open(directory); }) {}

  Result<PruneReport> run(const events::Work& work) {
    CAIRN_TRY(take_steps(work));
    for (auto& [i, kept] : kept_) report_.kept.push_back(std::move(kept));
    return std::move(report_);
  }

  Result<PruneReport> finish_all() {
    CAIRN_TRY_ASSIGN(const std::vector<fs::path> directories, sorted_directories());
    for (const fs::path& directory : directories) {
      if (options_.interrupted && options_.interrupted()) break;
      finish(directory);
    }
    return std::move(report_);
  }

 private:
  Result<std::vector<fs::path>> sorted_directories() const {
    CAIRN_TRY_ASSIGN(std::vector<fs::path> directories, root_.directories());
    std::sort(directories.begin(), directories.end());
    return directories;
  }

  Result<void> take_steps(const events::Work& work) {
    CAIRN_TRY_ASSIGN(const std::vector<fs::path> directories, sorted_directories());
    for (const fs::path& directory : directories) finish(directory);  // (1)
    for (const fs::path& directory : directories) note(directory);    // (2)
    candidates_ = checkpointer::candidates_in(directories, {}, checkpointer::Models::kIfAlone, open_);
    std::erase_if(candidates_,
                  [](const Candidate& candidate) { return candidate.is_model() || candidate.is_directory_of_files(); });
    keep_nameless();
    keep_damaged_newer();
    if (candidates_.empty()) return {};
    const std::vector<std::size_t> chosen = choose();  // (3)
    if (chosen.empty()) return {};
    if (!options_.dry_run) CAIRN_TRY(make_durable(candidates_.front().directory));  // (4)
    work.set(0, chosen.size());
    for (auto i = chosen.rbegin(); i != chosen.rend(); ++i) {  // (5)
      if (options_.interrupted && options_.interrupted()) {
        return Error(ErrorCode::kCancelled,
                     "interrupted before '" + candidates_[*i].directory.string() + "' was removed");
      }
      remove(*i);
      work.set(static_cast<std::uint64_t>(i - chosen.rbegin()) + 1, chosen.size());
    }
    return {};
  }

  void finish(const fs::path& directory) {
    const auto storage = root_.open(directory);
    if (!storage) return;  // gone, or not accessible: step 2 says so
    if (!commit::has_begun_removal(**storage)) return;
    events::Operation events = events_of(directory);
    Result<std::optional<commit::CheckpointRemoval>> finished =
        commit::finish_removal(**storage, removal_, events.work().count().get());
    if (!finished) {
      // Another process has finished the removal.
      if (finished.error().code() == ErrorCode::kNotFound) return events.leave();
      report_.problems.push_back(explained(std::move(finished).error(), directory));
      events.fail(report_.problems.back());
    } else if (*finished) {
      add_removed(directory, **std::move(finished), true, events);
    } else {
      events.leave();
    }
  }

  void note(const fs::path& directory) {
    const auto storage = root_.open(directory);
    if (!storage) return;
    const auto without_record =
        options_.adopt ? commit::WithoutRecord::kIdentify : commit::WithoutRecord::kLeaveUnknown;
    auto in_place = commit::read_metadata_in_place(**storage, std::string(kMetadataName), without_record);
    if (in_place) noted_[directory] = *std::move(in_place);
  }

  // A run resumes from none of these (restore_order.h): they take no other's place.
  void keep_nameless() {
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      if (!step_in_name(candidates_[i].directory)) report_.kept.push_back(kept(i, "no step in its name"));
    }
    std::erase_if(candidates_, [](const Candidate& candidate) { return !step_in_name(candidate.directory); });
  }

  // From then on the first candidate is the newest good one; no candidate is left if none is good.
  void keep_damaged_newer() {
    std::size_t newest = 0;
    for (; newest < candidates_.size(); ++newest) {
      const std::optional<Error> fault = fault_of(newest);
      if (!fault) break;
      report_.kept.push_back(
          kept(newest, std::string("newer than the newest good checkpoint, and can't be loaded: ") + fault->what()));
    }
    candidates_.erase(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(newest));
  }

  std::optional<Error> fault_of(std::size_t i) const {
    if (candidates_[i].fault) return candidates_[i].fault;
    return checkpointer::fault_of(candidates_[i], checkpointer::Depth::kTrailers, open_);
  }

  std::vector<std::size_t> choose() {
    std::vector<Entry> entries;
    std::vector<std::string> unknown(candidates_.size());  // why the metrics can't be read
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      entries.push_back({step_in_name(candidates_[i].directory), candidates_[i].time, {}});
      const bool has_metrics = candidates_[i].order || options_.adopt;  // stock torch writes none
      if (options_.rule.best.empty() || candidates_[i].fault || !has_metrics) continue;
      auto metrics = metrics_of(candidates_[i].directory);
      if (!metrics) unknown[i] = std::string("its metrics can't be read: ") + metrics.error().what();
      if (metrics) entries[i].metrics = {metrics->begin(), metrics->end()};
    }
    std::vector<std::string> reasons =
        kept_by(options_.rule, entries, seconds_since_1970(), [&](std::size_t i) { return i == 0 || !fault_of(i); });
    std::vector<std::size_t> chosen;
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      std::string reason = i == 0 ? "newest" : std::move(reasons[i]);
      if (reason.empty()) reason = std::move(unknown[i]);
      if (reason.empty()) reason = protection_of(candidates_[i]);
      if (reason.empty()) {
        chosen.push_back(i);
      } else {
        kept_[i] = kept(i, std::move(reason));
      }
    }
    return chosen;
  }

  Result<std::vector<std::pair<std::string, double>>> metrics_of(const fs::path& directory) const {
    CAIRN_TRY_ASSIGN(std::unique_ptr<storage::Storage> storage, root_.open(directory));
    CAIRN_TRY_ASSIGN(const Checkpoint checkpoint, checkpointer::open_in(std::move(storage), std::string(kMetadataName),
                                                                        checkpointer::Decoding::kWanted));
    return checkpoint.metrics();
  }

  // Why the checkpoint is none that a rule removes; empty if it is one.
  std::string protection_of(const Candidate& candidate) const {
    if (candidate.fault) return std::string("its metadata can't be read: ") + candidate.fault->what();
    const auto noted = noted_.find(candidate.directory);
    if (noted == noted_.end() || !noted->second.present) return "saved meanwhile";
    if (!options_.adopt && !candidate.order) return "of stock torch";
    if (!options_.adopt && !noted->second.record) return "saved meanwhile";
    if (!options_.adopt && candidate.is_copy()) return "a copy";
    if (is_protected(candidate.directory)) return "protected";
    const auto storage = root_.open(candidate.directory);
    if (!storage) return storage.error().what();
    const auto pin = commit::note_of_pin(**storage);
    if (!pin) return pin.error().what();
    return *pin ? commit::text_of_pin(**pin) : std::string();
  }

  // Also if one of the two paths leads through a link, or has dots.
  bool is_protected(const fs::path& directory) const {
    return std::any_of(options_.protect.begin(), options_.protect.end(), [&directory](const fs::path& protect) {
      std::error_code missing;
      return protect == directory || fs::equivalent(protect, directory, missing);
    });
  }

  Result<void> make_durable(const fs::path& directory) const {
    const auto explain = [&directory](Error error) {
      return std::move(error).while_doing("syncing the newest checkpoint '" + directory.string() +
                                          "' before older checkpoints are removed");
    };
    const auto storage = root_.open(directory);
    if (!storage) return explain(storage.error());
    if (const Result<void> synced = (*storage)->sync(); !synced) return explain(synced.error());
    return {};
  }

  void remove(std::size_t i) {
    const fs::path& directory = candidates_[i].directory;
    std::string protection;
    events::Operation events = events_of(directory);
    Result<commit::CheckpointRemoval> removed = remove_from(directory, protection, events.work().count());
    if (removed) {
      add_removed(directory, *std::move(removed), false, events);
    } else if (!protection.empty()) {
      kept_[i] = kept(i, std::move(protection));
      events.leave();
    } else if (removed.error().code() != ErrorCode::kNotFound && removed.error().code() != ErrorCode::kReplaced) {
      report_.problems.push_back(explained(std::move(removed).error(), directory));
      events.fail(report_.problems.back());
    } else {  // another process has removed or replaced the checkpoint
      events.leave();
    }
  }

  events::Operation events_of(const fs::path& directory) const {
    return options_.dry_run ? events::Operation() : events::Operation::of_removal(directory.native());
  }

  Result<commit::CheckpointRemoval> remove_from(const fs::path& directory, std::string& protection,
                                                const std::shared_ptr<WorkCount>& count) const {
    CAIRN_TRY_ASSIGN(const std::unique_ptr<storage::Storage> storage, root_.open(directory));
    return commit::remove_checkpoint(*storage, noted_.at(directory), removal_, &protection, count.get());
  }

  void add_removed(const fs::path& directory, commit::CheckpointRemoval removal, bool was_interrupted,
                   events::Operation& events) {
    RemovedCheckpoint removed = removed_checkpoint(directory, std::move(removal));
    removed.was_interrupted = was_interrupted;
    if (!options_.dry_run) removed.keeps_directory = !root_.remove_if_empty(directory);
    events.end(EventKind::kDeleted, removed.bytes);
    report_.bytes += removed.bytes;
    report_.removed.push_back(std::move(removed));
  }

  KeptCheckpoint kept(std::size_t i, std::string reason) const {
    const fs::path& directory = candidates_[i].directory;
    return {directory, step_in_name(directory), std::move(reason)};
  }

  RunRoot& root_;
  const PruneOptions& options_;
  commit::Removal removal_;
  checkpointer::OpenDirectory open_;
  std::map<fs::path, commit::MetadataInPlace> noted_;
  std::vector<Candidate> candidates_;           // in the order of latest(); after step 2 from the newest good one on
  std::map<std::size_t, KeptCheckpoint> kept_;  // by the index of the candidate
  PruneReport report_;                          // without the checkpoints of kept_
};

}  // namespace

RemovedCheckpoint removed_checkpoint(const fs::path& directory, commit::CheckpointRemoval removal) {
  RemovedCheckpoint removed;
  removed.directory = directory;
  removed.step = step_in_name(directory);
  removed.save_id = removal.save_id;
  removed.files = removal.files.size();
  for (const commit::RemovedFile& file : removal.files) removed.bytes += file.bytes;
  removed.warnings = std::move(removal.warnings);
  removed.keeps_directory = removal.leaves_files;
  return removed;
}

Result<PruneReport> prune(RunRoot& root, const PruneOptions& options, const events::Work& work) {
  CAIRN_TRY(check(options.rule));
  return Pruning(root, options).run(work);
}

Result<PruneReport> finish_removals(RunRoot& root, const std::function<bool()>& interrupted) {
  PruneOptions options;
  options.interrupted = interrupted;
  return Pruning(root, options).finish_all();
}

}  // namespace cairn::run

// A save, by one process or by several ranks. One rank is the coordinator; a process alone is its own coordinator.
//
// 1. Describe. Every rank describes its state as items, with values serialised, and looks for an earlier plan that
//    fits: of this process, or of the checkpoint that the process has loaded (resumed_plan.cc). The coordinator claims
//    the directory.
// 2. Agree. Every rank votes for its earlier plan, if any; the coordinator's vote carries the claim's ticket. The plan
//    of a checkpoint is compared between the ranks before its first use (plan_confirmation.cc). If the ranks' common
//    values differ for the first time, the ranks find their keys (rank_differences.h).
//                     [reduction; after a failure also all-gather; for a checkpoint's plan a reduction; maybe a gather]
// 3. Plan, unless all ranks voted for one plan: each rank gets its assignment of items (plan_exchange.cc). The plan of
// a
//    model is made by the coordinator alone; the claim follows from the plan, and takes place here.
//                                                                                 [gather, scatter, maybe once more]
// 4. Write. The coordinator renders `.metadata`. Every rank writes its files, renames the files to their final names,
// and
//    reports sizes and checksums.                                                                             [gather]
// 5. Commit. The coordinator commits by one rename (commit/save_transaction.cc). All ranks get the outcome, and the
//    metadata if it is small.                                                                              [broadcast]
//
// A rank that has failed still takes the remaining steps, with its error in place of a result: the error reaches all
// ranks, and no rank waits for the failed rank. After step 4 a rank withdraws its files only on the coordinator's word:
// a rank that has lost the coordinator can't know whether the save is committed.
//
// The calling thread plans and exchanges messages with the remaining ranks. All storage calls are tasks of the worker
// (save_worker.h). If a storage call hangs, the step fails on this rank, and all ranks get the failure in the next
// step. If the storage hangs in the commit, the outcome is unknown once the rename has begun; once the commit is
// synced, the save has succeeded, and only the clean-up is missing.
#include <cairn/checkpoint.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "commit/commit_plan.h"
#include "commit/job_identity.h"
#include "commit/model_files.h"
#include "commit/save_transaction.h"
#include "coordination/ranks.h"
#include "core/attempt.h"
#include "format/dcp/metadata_decoder.h"
#include "format/manifest/outcome.h"
#include "save/claim_options.h"
#include "save/device_payloads.h"
#include "save/held_parts.h"
#include "save/model_claim.h"
#include "save/model_layout.h"
#include "save/plan_confirmation.h"
#include "save/plan_exchange.h"
#include "save/plan_terms.h"
#include "save/process_plans.h"
#include "save/rank_writer.h"
#include "save/resumed_plan.h"
#include "save/save_calls.h"
#include "save/save_items.h"
#include "save/save_layout.h"
#include "save/save_messages.h"
#include "save/save_worker.h"
#include "save/staged_plan.h"
#include "save/vote.h"
#include "save_plan/local_plans.h"
#include "storage/open_directory.h"

namespace cairn {
namespace {

using checkpointer::RankWriter;
using checkpointer::SaveAssignment;
using checkpointer::SaveDirectory;
using checkpointer::SaveItems;
using checkpointer::SaveLayout;
using checkpointer::SaveWorker;
using checkpointer::WorkerState;
using checkpointer::WrittenFile;
using coordination::Ranks;
using data_file::ItemSource;

// Steps 1, 3 and 5, the coordinator's part.
class Coordinator {
 public:
  Coordinator(SaveWorker& worker, const SaveOptions& options) : worker_(worker), options_(options) {}

  // Step 1, of a checkpoint.
  Result<commit::SaveTicket> claim(bool names_taken) {
    return worker_.claim(commit::next_save_identity(), checkpointer::claim_options_of(options_, names_taken));
  }

  // Step 3, of a model: an assignment for each rank, encoded.
  Result<std::vector<std::string>> assign_model(std::vector<std::string> messages) {
    CAIRN_TRY_ASSIGN(const std::vector<std::string> contents, checkpointer::take_all_contents(messages));
    CAIRN_TRY_ASSIGN(save_plan::PlannedSave planned,
                     save_plan::plan_together(std::move(messages), options_.dedup_to_lowest_rank));
    CAIRN_TRY_ASSIGN(checkpointer::PlannedComparison compared,
                     checkpointer::compare_planned(planned.local.plans(), contents));
    differences_ = std::move(compared.warning);
    CAIRN_TRY_ASSIGN(SaveLayout layout, lay_out_model(planned));
    catalog_ = std::move(layout.catalog);
    file_counts_ = std::move(layout.file_counts);
    return checkpointer::encode_assignments(layout.assignments, std::move(compared));
  }
  // Of a checkpoint, before a rank can publish a file: the names of all files.
  Result<void> expect(const commit::CommitPlan& commit_plan, const commit::SaveTicket& ticket,
                      const commit::RankPlace& place) {
    request_ = commit_plan.commit_request(ticket, place, options_.checkpoint_id);
    std::vector<std::string> names;
    for (const std::vector<std::string>& of_rank : request_.files) {
      names.insert(names.end(), of_rank.begin(), of_rank.end());
    }
    return worker_.run("claiming the directory", [names](WorkerState& worker_state) -> Result<void> {
      worker_state.transaction->expect(names);
      return {};
    });
  }

  // Before this rank writes: renders the metadata of the checkpoint. The remaining ranks write already.
  Result<void> render() {
    CAIRN_TRY_ASSIGN(pickle_, request_.render());
    return {};
  }

  // Step 5: the outcome for all ranks, encoded.
  Result<std::string> commit(const std::vector<std::string>& messages) {
    manifest::CommitRecord record;
    record.plan = request_.plan;
    for (std::size_t rank = 0; rank < messages.size(); ++rank) {
      CAIRN_TRY_ASSIGN(const std::vector<WrittenFile> files, checkpointer::decode_written(messages[rank]));
      if (files.size() != (options_.safetensors ? file_counts_[rank] : request_.files[rank].size())) {
        return Error(ErrorCode::kInternal, "a rank wrote a number of files that differs from its assignment")
            .rank(static_cast<std::int64_t>(rank));
      }
      for (std::size_t i = 0; i < files.size() && !options_.safetensors; ++i) {
        record.files.push_back({request_.files[rank][i], files[i].size, files[i].trailer_checksum});
      }
    }
    if (options_.before_commit) CAIRN_TRY(options_.before_commit());
    CAIRN_TRY_ASSIGN(commit::CommitReport report,
                     options_.safetensors
                         ? worker_.commit_model(checkpointer::content_of(catalog_), options_.durability)
                         : worker_.commit(pickle_, std::move(record), options_.durability));
    const bool is_sent = pickle_.size() <= checkpointer::kSentPickleBytesMax;
    return checkpointer::encode_committed({is_sent ? pickle_ : std::string(), std::move(report.warnings)});
  }

  std::uint64_t metadata_bytes() const { return pickle_.size(); }
  bool may_have_committed() const { return worker_.may_have_committed(); }
  // The warning about values of a model that differ between the ranks.
  std::optional<std::string> take_differences() { return std::exchange(differences_, std::nullopt); }
  // Of a model.
  Catalog take_catalog() { return std::move(catalog_); }

 private:
  Result<SaveLayout> lay_out_model(save_plan::PlannedSave& planned) {
    CAIRN_TRY_ASSIGN(const commit::SaveTicket ticket, checkpointer::claim_model(worker_, planned, options_));
    CAIRN_TRY_ASSIGN(SaveLayout layout, checkpointer::lay_out_model(planned, *options_.safetensors, ticket));
    CAIRN_TRY(worker_.run("claiming the directory",
                          [files = layout.catalog.files](WorkerState& worker_state) -> Result<void> {
                            worker_state.transaction->expect(files);
                            return {};
                          }));
    return layout;
  }

  SaveWorker& worker_;
  const SaveOptions& options_;
  Catalog catalog_;                         // of a model
  std::vector<std::uint32_t> file_counts_;  // of a model, by rank
  commit::CommitRequest request_;           // empty for a model
  std::string pickle_;                      // of `.metadata`; empty for a model
  std::optional<std::string> differences_;
};

class Save {
 public:
  explicit Save(const SaveOptions& options)
      : options_(options),
        ranks_(options.collectives, options.coordinator_rank),
        worker_(options.deadlines),
        coordinator_(worker_, options) {
    worker_.set_interrupted(options.interrupted);
  }

  Result<SaveReport> run(const SaveDirectory& directory, const StateDict& state) {
    Result<SaveReport> report = take_steps(directory, state);
    if (report) {
      worker_.leave();  // does not call `interrupted`, whose exception would hide the commit
    } else {
      worker_.finish();
    }
    return report;
  }

 private:
  Result<SaveReport> take_steps(const SaveDirectory& directory, const StateDict& state) {
    CAIRN_TRY(agree(ranks_.attempt([&] { return describe(directory, state); })));  // (1)
    if (!plan_) CAIRN_TRY(ticket_ ? plan_anew() : plan_model());
    Result<std::string> written = ranks_.attempt([&] { return write(); });  // (4)
    const Result<std::vector<std::string>> all = ranks_.gather(std::move(written));
    std::string decision;
    if (ranks_.is_coordinator()) {  // (5)
      const Result<std::string> committed =
          all ? ranks_.attempt([&] { return coordinator_.commit(*all); }) : all.error();
      decision = checkpointer::encode_decision({ranks_.tell(committed), coordinator_.may_have_committed()});
    }
    Result<std::string> received = ranks_.broadcast(std::move(decision));
    if (!received) return std::move(received).error().while_doing(without_decision());
    return conclude(*received);
  }

  // Step 2.
  Result<void> agree(const Result<checkpointer::Vote>& vote) {
    CAIRN_TRY_ASSIGN(const checkpointer::VoteCount count, checkpointer::hold_vote(ranks_, vote));
    if (!count.ticket && !options_.safetensors) return Error(ErrorCode::kInternal, "the save has no coordinator");
    ticket_ = count.ticket;
    if (count.plan_id == 0) plan_.reset();
    checkpointer::DifferentSets different = count.different;
    if (plan_ && !plan_->is_confirmed) {
      CAIRN_TRY_ASSIGN(const checkpointer::Confirmation confirmed,
                       checkpointer::confirm_plan(ranks_, *ticket_, plan_, items_.sources(), options_.record_paths));
      plan_ = confirmed.plan;
      different = confirmed.different;
      if (plan_) checkpointer::keep_process_plan(plan_);
    }
    if (count.differences_noted) (void)checkpointer::note_differences();
    if (!plan_ || different.none() || count.differences_noted) return {};
    CAIRN_TRY_ASSIGN(differences_, checkpointer::find_differences(ranks_, items_.sources(), plan_->watched, different));
    return {};
  }

  // Step 3, of a checkpoint.
  Result<void> plan_anew() {
    checkpointer::PlanExchange exchange(ranks_, {items_, local_plan_, options_, options_.checkpoint_id, *ticket_});
    CAIRN_TRY(exchange.run(
        [&](const commit::CommitPlan& commit_plan) { return coordinator_.expect(commit_plan, *ticket_, place()); }));
    assignment_ = std::move(exchange.assignment());
    commit_plan_ = exchange.commit_plan();
    differences_ = exchange.take_differences();
    planned_catalog_ = exchange.take_catalog();
    return {};
  }

  // Step 3, of a model.
  Result<void> plan_model() {
    const auto encode = [&]() -> Result<std::string> {
      std::string mine = local_plan_;
      save_plan::append_contents(checkpointer::contents_to_send(ranks_, items_.sources()), mine);
      return mine;
    };
    Result<std::vector<std::string>> plans = ranks_.gather(ranks_.attempt(encode));
    Result<std::vector<std::string>> assignments{std::vector<std::string>()};
    if (ranks_.is_coordinator()) {
      assignments =
          plans ? ranks_.attempt([&] { return coordinator_.assign_model(std::move(*plans)); }) : plans.error();
    }
    CAIRN_TRY_ASSIGN(const std::string assignment, ranks_.scatter(std::move(assignments)));
    assignment_ = ranks_.attempt([&] { return checkpointer::decode_assignment(assignment); });
    if (!ranks_.is_coordinator()) return {};
    differences_ = coordinator_.take_differences();
    return {};
  }

  // The broadcast of step 5 has failed. A commit is not undone if a rank can't be reached, so the error text states the
  // known outcome.
  std::string_view without_decision() const {
    if (!ranks_.is_coordinator())
      return "waiting for the coordinator's decision: the save may be committed, look at the directory";
    if (!coordinator_.may_have_committed()) return "telling the other ranks that the save has failed";
    return "telling the other ranks that the save is committed: the new checkpoint is in place";
  }

  Result<checkpointer::Vote> describe(const SaveDirectory& directory, const StateDict& state) {
    if (options_.safetensors) CAIRN_TRY(checkpointer::check_model_state(state.entries(), *options_.safetensors));
    CAIRN_TRY(worker_.open(directory));
    if (options_.alone_as_rank && (ranks_.size() > 1 || options_.safetensors)) {
      return Error(ErrorCode::kInvalidArgument, "alone_as_rank can't be combined with collectives or a model");
    }
    if (ranks_.size() == 1 && !options_.alone_as_rank) parts_warning_ = checkpointer::warning_of_parts(state);
    CAIRN_TRY_ASSIGN(items_, SaveItems::make(state, checkpointer::ReadableMemory::kOfAnyDevice));
    CAIRN_TRY_ASSIGN(devices_, checkpointer::DevicePayloads::mark(items_.sources(), options_.deadlines.progress));
    CAIRN_TRY_ASSIGN(const bool names_taken, are_names_taken());
    CAIRN_TRY_ASSIGN(local_plan_, save_plan::encode_local_plan(
                                      items_.sources(), {options_.record_paths, options_.file_per_item, names_taken}));
    checkpointer::Vote vote;
    vote.names_free = !names_taken;
    vote.differences_noted = checkpointer::are_differences_noted();
    if (options_.safetensors) return vote;
    find_plan();
    if (plan_) vote.plan_id = plan_->id;
    if (plan_ && !vote.differences_noted) {
      vote.content_sums = checkpointer::content_sums(items_.sources(), plan_->watched);
    }
    if (ranks_.is_coordinator()) {
      CAIRN_TRY_ASSIGN(vote.ticket, coordinator_.claim(names_taken));
    }
    return vote;
  }

  // A process alone plans without messages, and keeps no plan.
  void find_plan() {
    if (ranks_.size() == 1) return;
    const std::string terms = checkpointer::plan_terms(options_, ranks_.rank(), ranks_.size());
    plan_ = checkpointer::find_process_plan(local_plan_, terms);
    if (plan_) return;
    plan_ = checkpointer::resume_plan(
        items_, {local_plan_, terms, ranks_.rank(), ranks_.size(), ranks_.is_coordinator(), options_.file_per_item,
                 options_.metadata_attributes, options_.deadlines.publish});
  }

  Result<bool> are_names_taken() {
    const std::string name = commit::data_file_name({{}, true}, number_of_this_rank(), 0);
    return worker_.run("checking which file names are in use",
                       [name, is_model = options_.safetensors.has_value()](WorkerState& state) -> Result<bool> {
                         if (!is_model) return state.storage->open(name, true).has_value();
                         CAIRN_TRY_ASSIGN(const std::vector<storage::ListedFile> files, state.storage->list());
                         return std::any_of(files.begin(), files.end(), [](const storage::ListedFile& file) {
                           return commit::is_model_file_name(file.name);
                         });
                       });
  }

  // Step 4.
  Result<std::string> write() {
    if (ranks_.is_coordinator() && ticket_) {
      if (plan_) CAIRN_TRY(coordinator_.expect(*plan_->layout->commit_plan, *ticket_, place()));
      CAIRN_TRY(coordinator_.render());
    }
    SaveAssignment assignment;
    if (plan_) {
      assignment = {*ticket_, plan_->id, plan_->save_file_count(), false, plan_->items, {}, {}};
    } else {
      CAIRN_TRY_ASSIGN(assignment, std::move(assignment_));
    }
    save_id_ = assignment.ticket.identity.save_id;
    CAIRN_TRY_ASSIGN(const std::vector<ItemSource> sources, items_.take(assignment.items));
    if (ticket_ && !plan_ && ranks_.size() > 1) CAIRN_TRY(keep_plan(assignment, sources));
    const checkpointer::RankPart part{assignment.ticket, number_of_this_rank(), assignment.file_count,
                                      options_.file_per_item};
    CAIRN_TRY_ASSIGN(auto writer, options_.safetensors
                                      ? RankWriter::make_model(part, sources, assignment.files, kind_of_set(), devices_)
                                      : RankWriter::make(part, sources, devices_));
    has_written_ = true;
    CAIRN_TRY_ASSIGN(const std::vector<WrittenFile> written, worker_.write(std::move(writer), options_));
    for (const WrittenFile& file : written) bytes_written_ += file.size;
    std::string message_of_files = checkpointer::encode_written(written);
    CAIRN_TRY(worker_.run("handing over its files", [](WorkerState& worker_state) -> Result<void> {
      worker_state.writer->files().hand_over();
      return {};
    }));
    return message_of_files;
  }

  // Keeps the plan of the assignment for the process's later saves.
  Result<void> keep_plan(const SaveAssignment& assignment, std::span<const ItemSource> sources) {
    auto plan = std::make_shared<checkpointer::StagedPlan>();
    plan->id = assignment.plan_id;
    plan->local_plan = std::move(local_plan_);
    plan->terms = checkpointer::plan_terms(options_, ranks_.rank(), ranks_.size());
    plan->items = assignment.items;
    CAIRN_TRY_ASSIGN(plan->watched, checkpointer::watch_items(items_.sources(), assignment.watched));
    CAIRN_TRY(checkpointer::lay_out_staged(sources, {save_id_, number_of_this_rank(), 0, assignment.file_count},
                                           options_.file_per_item, commit_plan_, *plan));
    checkpointer::keep_process_plan(std::move(plan));
    return {};
  }

  safetensors::FileSet::Kind kind_of_set() const {
    using Kind = safetensors::FileSet::Kind;
    return options_.safetensors->sharded ? Kind::kShards : Kind::kIndexed;
  }

  std::uint32_t number_of_this_rank() const {
    return options_.alone_as_rank.value_or(static_cast<std::uint32_t>(ranks_.rank()));
  }

  commit::RankPlace place() const {
    return {number_of_this_rank(), static_cast<std::uint32_t>(ranks_.size()),
            static_cast<std::uint32_t>(options_.coordinator_rank)};
  }

  Result<SaveReport> conclude(const std::string& message) {
    CAIRN_TRY_ASSIGN(const checkpointer::DecisionMessage decision, checkpointer::decode_decision(message));
    const Result<std::string> outcome = manifest::decode_outcome(decision.outcome);
    if (!outcome) {
      if (has_written_ && !decision.files_stay) {
        (void)worker_.run("withdrawing its files", [](WorkerState& worker_state) -> Result<void> {
          worker_state.writer->files().withdraw();
          return {};
        });
      }
      return outcome.error();
    }
    CAIRN_TRY_ASSIGN(checkpointer::Committed committed, checkpointer::decode_committed(*outcome));
    if (!worker_.has_given_up()) {  // else the clean-up hung, and a warning says so
      const auto remove = [](WorkerState& worker_state) -> Result<void> {
        worker_state.writer->files().remove_own_folder();
        return {};
      };
      // An exception of `interrupted` must not hide the commit.
      const Result<void> cleaned = attempt([&] { return worker_.run("removing its private folder", remove); });
      if (!cleaned) committed.warnings.push_back(checkpointer::not_cleaned_up(cleaned.error()));
    }
    if (auto refusal = devices_ ? devices_->untold_refusal() : std::nullopt) committed.warnings.push_back(*refusal);
    if (parts_warning_) committed.warnings.push_back(*parts_warning_);
    if (differences_ && checkpointer::note_differences()) committed.warnings.push_back(*differences_);
    if (ranks_.is_coordinator()) bytes_written_ += coordinator_.metadata_bytes();
    CAIRN_TRY_ASSIGN(std::shared_ptr<const Catalog> catalog, catalog_after(committed));
    return SaveReport{save_id_, std::move(catalog), bytes_written_, std::move(committed.warnings)};
  }

  Result<std::shared_ptr<const Catalog>> catalog_after(const checkpointer::Committed& committed) {
    auto catalog = std::make_shared<Catalog>();
    if (planned_catalog_) {
      *catalog = std::move(*planned_catalog_);
    } else if (ranks_.is_coordinator() && options_.safetensors) {
      *catalog = coordinator_.take_catalog();
    } else if (committed.pickle.empty()) {
      return std::shared_ptr<const Catalog>();
    } else {
      CAIRN_TRY_ASSIGN(auto decoded, dcp::decode_metadata(std::as_bytes(std::span(committed.pickle))));
      *catalog = std::move(decoded.catalog);
    }
    if (options_.safetensors) catalog->format = CheckpointFormat::kSafetensors;
    CAIRN_TRY(catalog->index());
    return std::shared_ptr<const Catalog>(std::move(catalog));
  }

  const SaveOptions& options_;
  coordination::Ranks ranks_;
  SaveItems items_;
  std::shared_ptr<checkpointer::DevicePayloads> devices_;  // shared with the RankWriter; null without devices
  std::string local_plan_;
  std::shared_ptr<const checkpointer::StagedPlan> plan_;  // the earlier plan that all ranks have voted for
  std::optional<commit::SaveTicket> ticket_;              // none for a model
  // Of a new plan: this rank's, and the coordinator's. The coordinator has no catalog if it has not laid out all files.
  Result<SaveAssignment> assignment_ = Error(ErrorCode::kInternal, "the save has no plan");
  std::shared_ptr<const commit::CommitPlan> commit_plan_;
  std::optional<Catalog> planned_catalog_;
  std::optional<std::string> differences_;  // the coordinator's warning about values that differ between the ranks
  SaveWorker worker_;                       // after items_: the worker may read the items until it is destroyed
  Coordinator coordinator_;
  std::optional<std::string> parts_warning_;
  bool has_written_ = false;  // the worker has a RankWriter, unless it gave up earlier
  std::uint64_t bytes_written_ = 0;
  SaveId save_id_;
};

}  // namespace

SaveDirectory checkpointer::made_directory(const std::filesystem::path& directory) {
  return {directory.string(), [directory] { return storage::make_directory(directory); }};
}

Result<SaveReport> checkpointer::save_into(const SaveDirectory& directory, const StateDict& state,
                                           const SaveOptions& options) {
  Result<SaveReport> report = Save(options).run(directory, state);
  if (!report) return std::move(report).error().while_doing("saving to '" + directory.name + "'");
  return report;
}

Result<SaveReport> save(const std::filesystem::path& directory, const StateDict& state, const SaveOptions& options) {
  SaveOptions complete = options;
  if (complete.checkpoint_id.empty()) complete.checkpoint_id = directory.string();
  return checkpointer::save_into(checkpointer::made_directory(directory), state, complete);
}

Error abandon_save(const Error& reason, const SaveOptions& options) {
  coordination::Ranks ranks(options.collectives, options.coordinator_rank);
  if (options.collectives == nullptr) return reason;
  const auto count = checkpointer::hold_vote(ranks, reason);
  return count ? reason : count.error();
}

}  // namespace cairn

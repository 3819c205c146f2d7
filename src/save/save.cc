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
//    a model is made by the coordinator alone; the claim follows from the plan, and takes place here.
//                                                                                 [gather, scatter, maybe once more]
// 4. Write. The coordinator renders `.metadata`. Every rank writes its files, renames the files to their final names,
//    and reports sizes and checksums.                                                                         [gather]
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
#include <cairn/save.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "commit/bucket/bucket_commit.h"
#include "commit/job_identity.h"
#include "commit/meeting/commit_plan.h"
#include "commit/model/model_files.h"
#include "commit/save_transaction.h"
#include "coordination/ranks.h"
#include "events/operation.h"
#include "format/dcp/metadata_decoder.h"
#include "save/agreed_plan.h"
#include "save/claim_options.h"
#include "save/device_payloads.h"
#include "save/held_parts.h"
#include "save/model_claim.h"
#include "save/model_layout.h"
#include "save/option_checks.h"
#include "save/plan_exchange.h"
#include "save/rank_writer.h"
#include "save/save_calls.h"
#include "save/save_items.h"
#include "save/save_layout.h"
#include "save/save_messages.h"
#include "save/save_outcome.h"
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
    request_ = commit_plan.commit_request(ticket, place, options_.checkpoint_id, options_.notes);
    std::vector<std::string> names;
    for (const std::vector<std::string>& of_rank : request_.files) {
      names.insert(names.end(), of_rank.begin(), of_rank.end());
    }
    return worker_.expect(std::move(names));
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
  // The warning about values of a model that differ between the ranks.
  std::optional<std::string> take_differences() { return std::exchange(differences_, std::nullopt); }
  // Of a model.
  Catalog take_catalog() { return std::move(catalog_); }

 private:
  Result<SaveLayout> lay_out_model(save_plan::PlannedSave& planned) {
    CAIRN_TRY_ASSIGN(const commit::SaveTicket ticket, checkpointer::claim_model(worker_, planned, options_));
    CAIRN_TRY_ASSIGN(SaveLayout layout, checkpointer::lay_out_model(planned, *options_.safetensors, ticket));
    CAIRN_TRY(worker_.expect(layout.catalog.files));
    return layout;
  }

  SaveWorker& worker_;
  const SaveOptions& options_;
  Catalog catalog_;                         // of a model
  std::vector<std::uint32_t> file_counts_;  // of a model, by rank
  commit::CommitRequest request_;           // empty for a model
  std::string pickle_;                      // of `.metadata`, with the notes; empty for a model
  std::optional<std::string> differences_;
};

class Save {
 public:
  explicit Save(const SaveOptions& options)
      : options_(options),
        ranks_(options.collectives, options.coordinator_rank),
        place_(checkpointer::place_of(options, ranks_)),
        worker_(options.deadlines),
        coordinator_(worker_, options) {
    worker_.set_interrupted(options.interrupted);
  }

  Result<SaveReport> run(const SaveDirectory& directory, const StateDict& state) {
    const auto rank_count = static_cast<std::uint32_t>(ranks_.size());
    events_ = events::Operation::begin(EventOperation::kSave, {directory.name, place_.rank, rank_count});
    worker_.count_into(events_.work().count());
    Result<SaveReport> report = take_steps(directory, state);
    worker_.end(report.has_value());
    report ? events_.end(EventKind::kCommitted, report->bytes_written) : events_.fail(report.error());
    return report;
  }

 private:
  Result<SaveReport> take_steps(const SaveDirectory& directory, const StateDict& state) {
    CAIRN_TRY(agree(ranks_.attempt([&] { return describe(directory, state); })));  // (1)
    if (!plan_) CAIRN_TRY(ticket_ ? plan_anew() : plan_model());
    events_.step(EventKind::kPlanned);
    Result<std::string> written = ranks_.attempt([&] { return write(); });  // (4)
    if (written) events_.step(EventKind::kWritten, bytes_written_);
    const Result<std::vector<std::string>> all = ranks_.gather(std::move(written));
    CAIRN_TRY_ASSIGN(checkpointer::Committed committed,  // (5)
                     checkpointer::share_outcome(ranks_, worker_, all, [&] { return coordinator_.commit(*all); }));
    return conclude(std::move(committed));
  }

  // Step 2.
  Result<void> agree(const Result<checkpointer::Vote>& vote) {
    CAIRN_TRY_ASSIGN(checkpointer::Agreement agreed, checkpointer::agree(planning(), vote, plan_));
    ticket_ = agreed.ticket;
    plan_ = std::move(agreed.plan);
    differences_ = std::move(agreed.differences);
    return {};
  }

  // Step 3, of a checkpoint.
  Result<void> plan_anew() {
    checkpointer::PlanExchange exchange(ranks_, {items_, local_plan_, options_, options_.checkpoint_id, *ticket_});
    CAIRN_TRY(exchange.run(
        [&](const commit::CommitPlan& commit_plan) { return coordinator_.expect(commit_plan, *ticket_, place_); }));
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
    const auto assign = [&](std::vector<std::string> plans) { return coordinator_.assign_model(std::move(plans)); };
    CAIRN_TRY_ASSIGN(const std::string assignment, ranks_.exchange(ranks_.attempt(encode), assign));
    assignment_ = ranks_.attempt([&] { return checkpointer::decode_assignment(assignment); });
    if (!ranks_.is_coordinator()) return {};
    differences_ = coordinator_.take_differences();
    return {};
  }

  Result<checkpointer::Vote> describe(const SaveDirectory& directory, const StateDict& state) {
    CAIRN_TRY(checkpointer::check_notes_of(options_));
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
    if (!options_.safetensors) plan_ = checkpointer::find_plan(planning());
    checkpointer::Vote vote = checkpointer::vote_for(plan_, items_);
    vote.names_free = !names_taken;
    if (options_.safetensors) return vote;
    if (ranks_.is_coordinator()) {
      CAIRN_TRY_ASSIGN(vote.ticket, coordinator_.claim(names_taken));
    }
    return vote;
  }

  // The plans of earlier saves are the process's.
  checkpointer::PlanningRank planning() { return {ranks_, options_, items_, local_plan_, nullptr}; }

  Result<bool> are_names_taken() {
    const std::string name = commit::data_file_name({{}, true}, place_.rank, 0);
    return worker_.run("checking which file names are in use",
                       [name, is_model = options_.safetensors.has_value()](WorkerState& state) -> Result<bool> {
                         if (is_model) CAIRN_TRY(commit::refuse_in_bucket(*state.storage, "a safetensors model"));
                         if (!state.storage->has_rename()) return true;  // its names have the save id
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
      if (plan_) CAIRN_TRY(coordinator_.expect(*plan_->layout->commit_plan, *ticket_, place_));
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
    if (ticket_ && !plan_ && ranks_.size() > 1) {
      CAIRN_TRY(checkpointer::keep_plan(planning(), assignment, sources, commit_plan_));
    }
    const checkpointer::RankPart part{assignment.ticket, place_.rank, assignment.file_count, options_.file_per_item};
    CAIRN_TRY_ASSIGN(auto writer, options_.safetensors
                                      ? RankWriter::make_model(part, sources, assignment.files, kind_of_set(), devices_)
                                      : RankWriter::make(part, sources, devices_));
    CAIRN_TRY_ASSIGN(const std::vector<WrittenFile> written, worker_.write(std::move(writer), options_));
    for (const WrittenFile& file : written) bytes_written_ += file.size;
    std::string message_of_files = checkpointer::encode_written(written);
    CAIRN_TRY(worker_.hand_over_files());
    return message_of_files;
  }

  safetensors::FileSet::Kind kind_of_set() const {
    using Kind = safetensors::FileSet::Kind;
    return options_.safetensors->sharded ? Kind::kShards : Kind::kIndexed;
  }

  Result<SaveReport> conclude(checkpointer::Committed committed) {
    if (auto refusal = devices_ ? devices_->untold_refusal() : std::nullopt) committed.warnings.push_back(*refusal);
    if (parts_warning_) committed.warnings.push_back(*parts_warning_);
    events::add_trace_problem(committed.warnings);
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
  commit::RankPlace place_;
  events::Operation events_;
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

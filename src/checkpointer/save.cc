// A save, by one process or by several ranks. One rank is the coordinator; a process alone is its own coordinator.
//
// 1. Every rank describes its state as items, with values serialised. The coordinator gets the local plans.  [gather]
// 2. The coordinator claims the directory, assigns the items to ranks (plan/global_save_plan.h) and lays out the files,
//    which determines `.metadata`. Each rank gets its assignment.                                           [scatter]
// 3. Every rank writes its files, renames the files to their final names, and reports sizes and checksums.   [gather]
// 4. The coordinator commits by one rename (commit/save_transaction.cc). All ranks get the outcome, and the metadata if
//    it is small.                                                                                         [broadcast]
//
// A rank that has failed still takes the remaining steps, with its error in place of a result: the error reaches all
// ranks, and no rank waits for the failed rank. After step 3 a rank withdraws its files only on the coordinator's word:
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

#include "checkpointer/claim_options.h"
#include "checkpointer/directory_calls.h"
#include "checkpointer/job_identity.h"
#include "checkpointer/local_plans.h"
#include "checkpointer/model_claim.h"
#include "checkpointer/model_layout.h"
#include "checkpointer/plan_terms.h"
#include "checkpointer/rank_writer.h"
#include "checkpointer/ranks.h"
#include "checkpointer/save_items.h"
#include "checkpointer/save_layout.h"
#include "checkpointer/save_messages.h"
#include "checkpointer/save_worker.h"
#include "commit/save_transaction.h"
#include "core/attempt.h"
#include "format/dcp/metadata_decoder.h"
#include "format/dcp/metadata_template.h"
#include "format/manifest/outcome.h"
#include "storage/open_directory.h"

namespace cairn {
namespace {

using checkpointer::Ranks;
using checkpointer::RankWriter;
using checkpointer::SaveAssignment;
using checkpointer::SaveDirectory;
using checkpointer::SaveItems;
using checkpointer::SaveLayout;
using checkpointer::SaveWorker;
using checkpointer::WorkerState;
using checkpointer::WrittenFile;
using data_file::ItemSource;

// Steps 2 and 4, the coordinator's part.
class Coordinator {
 public:
  Coordinator(SaveWorker& worker, const SaveOptions& options) : worker_(worker), options_(options) {}

  // An assignment for each rank, encoded.
  Result<std::vector<std::string>> assign(std::vector<std::string> messages) {
    recorded_.ranks = checkpointer::recorded_ranks(messages, options_);
    CAIRN_TRY_ASSIGN(checkpointer::PlannedSave planned,
                     checkpointer::plan_together(std::move(messages), options_.dedup_to_lowest_rank));
    CAIRN_TRY_ASSIGN(layout_, options_.safetensors ? lay_out_model(planned) : lay_out_checkpoint(std::move(planned)));
    const Catalog& catalog = layout_.catalog;
    CAIRN_TRY(worker_.run("claiming the directory", [files = catalog.files](WorkerState& worker_state) -> Result<void> {
      if (worker_state.transaction) worker_state.transaction->expect(files);
      if (worker_state.model) worker_state.model->expect(files);
      return {};
    }));
    CAIRN_TRY_ASSIGN(const dcp::MetadataTemplate metadata, dcp::MetadataTemplate::make(catalog));
    recorded_.text_slots = metadata.text_slots();
    pickle_ = metadata.render(*catalog.save_id, catalog.checkpoint_id.value_or(options_.checkpoint_id), catalog.files);
    std::vector<std::string> assignments;
    for (SaveAssignment& assignment : layout_.assignments) {
      assignments.push_back(checkpointer::encode_assignment(assignment));
      assignment = SaveAssignment();
    }
    return assignments;
  }

  // The outcome for all ranks, encoded.
  Result<std::string> commit(const std::vector<std::string>& messages) {
    manifest::CommitRecord record;
    for (std::size_t rank = 0; rank < messages.size(); ++rank) {
      CAIRN_TRY_ASSIGN(const std::vector<WrittenFile> files, checkpointer::decode_written(messages[rank]));
      if (files.size() != layout_.file_counts[rank]) {
        return Error(ErrorCode::kInternal, "a rank wrote a number of files that differs from its assignment")
            .rank(static_cast<std::int64_t>(rank));
      }
      for (const WrittenFile& file : files) {
        record.files.push_back({layout_.catalog.files[record.files.size()], file.size, file.trailer_checksum});
      }
      recorded_.ranks[rank].file_count = layout_.file_counts[rank];
    }
    if (messages.size() > 1) record.plan = std::move(recorded_);
    if (options_.before_commit) CAIRN_TRY(options_.before_commit());
    CAIRN_TRY_ASSIGN(commit::CommitReport report,
                     options_.safetensors
                         ? worker_.commit_model(checkpointer::content_of(layout_.catalog), options_.durability)
                         : worker_.commit(pickle_, std::move(record), options_.durability));
    const bool is_sent = options_.safetensors || pickle_.size() <= checkpointer::kSentPickleBytesMax;
    return checkpointer::encode_committed({is_sent ? pickle_ : std::string(), std::move(report.warnings)});
  }

  std::uint64_t metadata_bytes() const { return pickle_.size(); }
  bool may_have_committed() const { return worker_.may_have_committed(); }
  Catalog take_catalog() { return std::move(layout_.catalog); }

 private:
  Result<SaveLayout> lay_out_checkpoint(checkpointer::PlannedSave planned) {
    const commit::SaveIdentity identity = checkpointer::next_save_identity();
    CAIRN_TRY_ASSIGN(const commit::SaveTicket ticket,
                     worker_.claim(identity, checkpointer::claim_options_of(options_, planned.local.names_taken())));
    const std::uint32_t first_rank = options_.alone_as_rank.value_or(0);
    return checkpointer::lay_out_save(std::move(planned), ticket, first_rank, options_.checkpoint_id,
                                      options_.metadata_attributes);
  }

  Result<SaveLayout> lay_out_model(checkpointer::PlannedSave& planned) {
    CAIRN_TRY_ASSIGN(const commit::SaveTicket ticket, checkpointer::claim_model(worker_, planned, options_));
    return checkpointer::lay_out_model(planned, *options_.safetensors, ticket);
  }

  SaveWorker& worker_;
  const SaveOptions& options_;
  SaveLayout layout_;
  manifest::RecordedPlan recorded_;
  std::string pickle_;
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
    Result<std::vector<std::string>> plans =
        ranks_.gather(ranks_.attempt([&] { return describe(directory, state); }));  // (1)
    Result<std::vector<std::string>> assignments{std::vector<std::string>()};
    if (ranks_.is_coordinator()) {  // (2)
      assignments = plans ? ranks_.attempt([&] { return coordinator_.assign(std::move(*plans)); }) : plans.error();
    }
    CAIRN_TRY_ASSIGN(const std::string assignment, ranks_.scatter(std::move(assignments)));
    Result<std::string> written = ranks_.attempt([&] { return write(assignment); });  // (3)
    const Result<std::vector<std::string>> all = ranks_.gather(std::move(written));
    std::string decision;
    if (ranks_.is_coordinator()) {  // (4)
      const Result<std::string> committed =
          all ? ranks_.attempt([&] { return coordinator_.commit(*all); }) : all.error();
      decision = checkpointer::encode_decision({ranks_.tell(committed), coordinator_.may_have_committed()});
    }
    Result<std::string> received = ranks_.broadcast(std::move(decision));
    if (!received) return std::move(received).error().while_doing(without_decision());
    return conclude(*received);
  }

  // The broadcast of step 4 has failed. A commit is not undone if a rank can't be reached, so the error text states the
  // known outcome.
  std::string_view without_decision() const {
    if (!ranks_.is_coordinator())
      return "waiting for the coordinator's decision: the save may be committed, look at the directory";
    if (!coordinator_.may_have_committed()) return "telling the other ranks that the save has failed";
    return "telling the other ranks that the save is committed: the new checkpoint is in place";
  }

  Result<std::string> describe(const SaveDirectory& directory, const StateDict& state) {
    if (options_.safetensors) CAIRN_TRY(checkpointer::check_model_state(state.entries(), *options_.safetensors));
    CAIRN_TRY(worker_.open(directory));
    if (options_.alone_as_rank && (ranks_.size() > 1 || options_.safetensors)) {
      return Error(ErrorCode::kInvalidArgument, "alone_as_rank can't be combined with collectives or a model");
    }
    CAIRN_TRY_ASSIGN(items_, SaveItems::make(state));
    CAIRN_TRY_ASSIGN(const bool names_taken, are_names_taken());
    return checkpointer::encode_local_plan(items_.sources(),
                                           {options_.record_paths, options_.file_per_item, names_taken});
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

  Result<std::string> write(const std::string& message) {
    CAIRN_TRY_ASSIGN(const SaveAssignment assignment, checkpointer::decode_assignment(message));
    save_id_ = assignment.ticket.identity.save_id;
    CAIRN_TRY_ASSIGN(const std::vector<ItemSource> sources, items_.take(assignment.items));
    const checkpointer::RankPart part{assignment.ticket, number_of_this_rank(), assignment.file_count,
                                      options_.file_per_item};
    CAIRN_TRY_ASSIGN(auto writer, options_.safetensors
                                      ? RankWriter::make_model(part, sources, assignment.files, kind_of_set())
                                      : RankWriter::make(part, sources));
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

  safetensors::FileSet::Kind kind_of_set() const {
    using Kind = safetensors::FileSet::Kind;
    return options_.safetensors->sharded ? Kind::kShards : Kind::kIndexed;
  }

  std::uint32_t number_of_this_rank() const {
    return options_.alone_as_rank.value_or(static_cast<std::uint32_t>(ranks_.rank()));
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
    if (ranks_.is_coordinator()) bytes_written_ += coordinator_.metadata_bytes();
    CAIRN_TRY_ASSIGN(std::shared_ptr<const Catalog> catalog, catalog_after(committed));
    return SaveReport{save_id_, std::move(catalog), bytes_written_, std::move(committed.warnings)};
  }

  Result<std::shared_ptr<const Catalog>> catalog_after(const checkpointer::Committed& committed) {
    auto catalog = std::make_shared<Catalog>();
    if (ranks_.is_coordinator()) {
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
  Ranks ranks_;
  SaveItems items_;
  SaveWorker worker_;  // after items_: the worker may read the items until it is destroyed
  Coordinator coordinator_;
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
  Ranks ranks(options.collectives, options.coordinator_rank);
  Result<std::vector<std::string>> plans = ranks.gather(reason);
  if (options.collectives == nullptr) return reason;
  const Result<std::string> decision = ranks.scatter(std::move(plans));
  return decision ? reason : decision.error();
}

}  // namespace cairn

#include <cairn/save.h>

#include <functional>
#include <map>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "commit/job_identity.h"
#include "commit/save_ticket.h"
#include "events/operation.h"
#include "format/dcp/metadata_decoder.h"
#include "save/claim_options.h"
#include "save/model_claim.h"
#include "save/model_layout.h"
#include "save/option_checks.h"
#include "save/save_calls.h"
#include "save/save_items.h"
#include "save/save_layout.h"
#include "save/save_messages.h"
#include "save/save_worker.h"
#include "save_plan/local_plans.h"

namespace cairn {

using checkpointer::RankWriter;
using checkpointer::SaveDirectory;
using checkpointer::WorkerState;
using checkpointer::WrittenFile;

namespace {

constexpr std::uint32_t kUnknownRanks = 0;

std::uint32_t rank_of(const SaveOptions& options) {
  return options.alone_as_rank.value_or(static_cast<std::uint32_t>(options.coordinator_rank));
}

Error withdrawn() { return {ErrorCode::kCancelled, "the save was withdrawn"}; }

}  // namespace

struct SaveClaim::Impl {
  Impl(std::string given_directory, const SaveOptions& options)
      : directory(std::move(given_directory)),
        durability(options.durability),
        notes(options.notes),
        events(events::Operation::of_claim({directory, rank_of(options), kUnknownRanks})),
        worker(options.deadlines) {}

  Result<void> claim(const SaveDirectory& place, const SaveOptions& options);
  Result<void> claim_model(const SaveDirectory& place, const std::vector<std::vector<HeldBox>>& held,
                           const SaveOptions& options);
  Result<SaveReport> commit(std::string_view metadata, const std::vector<PublishedFile>& files);
  Result<SaveReport> commit_model(const std::vector<PublishedBox>& boxes);
  // Runs `commit`, and ends the worker.
  Result<SaveReport> end(const std::function<bool()>& interrupted, const std::function<Result<SaveReport>()>& commit);

  std::string directory;
  Durability durability;
  std::string notes;
  commit::SaveTicket ticket;
  // Of a model: the ranks' shares, and the model's files and boxes.
  std::vector<ModelShare> shares;
  Catalog model;
  bool ended = false;
  events::Operation events;
  checkpointer::SaveWorker worker;
};

struct RankShare::Impl {
  Impl(const SaveDirectory& directory, std::uint32_t rank, const SaveOptions& options)
      : events(events::Operation::begin(EventOperation::kSave, {directory.name, rank, kUnknownRanks})),
        worker(options.deadlines) {
    worker.count_into(events.work().count());
  }

  Result<void> write(const SaveDirectory& directory, const checkpointer::RankPart& part, const StateDict& state,
                     const SaveOptions& options);
  Result<void> write_model(const SaveDirectory& directory, std::string_view share, std::uint32_t rank,
                           const StateDict& state, const SaveOptions& options);
  Result<void> write(std::unique_ptr<RankWriter> writer, const SaveOptions& options);

  std::vector<PublishedFile> files;
  std::vector<ItemLocation> places;
  events::Operation events;
  checkpointer::SaveWorker worker;
};

namespace {

std::string saving_to(const std::string& directory) { return "saving to '" + directory + "'"; }

// Gives the worker the `interrupted` of one call, and removes the function when the call ends.
class InterruptScope {
 public:
  InterruptScope(checkpointer::SaveWorker& worker, const std::function<bool()>& interrupted) : worker_(worker) {
    worker_.set_interrupted(interrupted);
  }
  ~InterruptScope() { worker_.set_interrupted({}); }
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

 private:
  checkpointer::SaveWorker& worker_;
};

// Tensors without elements, for the plan of a save.
std::vector<Entry> entries_of(const std::vector<HeldBox>& boxes) {
  std::vector<Entry> entries;
  entries.reserve(boxes.size());
  for (const HeldBox& held : boxes) {
    TensorView view = TensorView::contiguous(static_cast<void*>(nullptr), held.dtype, held.box.sizes());
    entries.push_back({held.fqn, Path{held.fqn}, TensorEntry{std::move(view), held.shape, held.box, {}}});
  }
  return entries;
}

// Decodes and checks the caller's metadata: a commit must not make an unreadable checkpoint.
Result<Catalog> read_back(std::string_view metadata, const std::vector<PublishedFile>& files) {
  CAIRN_TRY_ASSIGN(dcp::DecodedMetadata decoded, dcp::decode_metadata(std::as_bytes(std::span(metadata))));
  std::unordered_set<std::string_view> names;
  for (const PublishedFile& file : files) {
    CAIRN_TRY(storage::check_name(file.name));
    if (!names.insert(file.name).second) {
      return Error(ErrorCode::kInvalidArgument, "two data files have the same name").file(file.name);
    }
  }
  for (const std::string& name : decoded.catalog.files) {
    if (!names.contains(name)) {
      return Error(ErrorCode::kInvalidArgument, "the metadata names a data file that no rank of this save has written")
          .file(name);
    }
  }
  CAIRN_TRY(decoded.catalog.index());
  return std::move(decoded.catalog);
}

}  // namespace

SaveClaim::SaveClaim(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SaveClaim::SaveClaim(SaveClaim&&) noexcept = default;
SaveClaim& SaveClaim::operator=(SaveClaim&&) noexcept = default;
SaveClaim::~SaveClaim() = default;

Result<void> SaveClaim::Impl::claim(const SaveDirectory& place, const SaveOptions& options) {
  CAIRN_TRY(checkpointer::check_notes_of(options));
  CAIRN_TRY(worker.open(place));
  CAIRN_TRY_ASSIGN(ticket, worker.claim(commit::next_save_identity(), checkpointer::claim_options_of(options)));
  return worker.run("claiming the directory", [](WorkerState& worker_state) -> Result<void> {
    worker_state.transaction->expect_any();
    return {};
  });
}

Result<SaveClaim> checkpointer::claim_in(const SaveDirectory& directory, const SaveOptions& options) {
  auto impl = std::make_unique<SaveClaim::Impl>(directory.name, options);
  const InterruptScope interrupt_scope(impl->worker, options.interrupted);
  if (auto claimed = impl->claim(directory, options); !claimed) {
    impl->worker.finish();
    impl->events.fail(claimed.error());
    return std::move(claimed).error().while_doing(saving_to(directory.name));
  }
  return SaveClaim(std::move(impl));
}

Result<SaveClaim> SaveClaim::make(const std::filesystem::path& directory, const SaveOptions& options) {
  return checkpointer::claim_in(checkpointer::made_directory(directory), options);
}

// Lays out the model before the claim's ticket leaves this rank.
Result<void> SaveClaim::Impl::claim_model(const SaveDirectory& place, const std::vector<std::vector<HeldBox>>& held,
                                          const SaveOptions& options) {
  if (!options.safetensors) return Error(ErrorCode::kInvalidArgument, "a save of a model without the form of a model");
  CAIRN_TRY(checkpointer::check_notes_of(options));
  const SafetensorsForm& form = *options.safetensors;
  std::vector<std::string> messages;
  for (const std::vector<HeldBox>& boxes : held) {
    const std::vector<Entry> entries = entries_of(boxes);
    CAIRN_TRY(checkpointer::check_model_state(entries, form));
    CAIRN_TRY_ASSIGN(const checkpointer::SaveItems items, checkpointer::SaveItems::make(entries));
    CAIRN_TRY_ASSIGN(std::string message, save_plan::encode_local_plan(items.sources(), {}));
    messages.push_back(std::move(message));
  }
  CAIRN_TRY_ASSIGN(save_plan::PlannedSave planned, save_plan::plan_together(std::move(messages), true));
  CAIRN_TRY(worker.open(place));
  CAIRN_TRY_ASSIGN(ticket, checkpointer::claim_model(worker, planned, options));
  CAIRN_TRY_ASSIGN(checkpointer::SaveLayout layout, checkpointer::lay_out_model(planned, form, ticket));
  for (const checkpointer::SaveAssignment& assignment : layout.assignments) {
    ModelShare& share = shares.emplace_back();
    share.ticket = checkpointer::encode_assignment(assignment);
    for (const checkpointer::AssignedItem& item : assignment.items) share.boxes.push_back(item.index);
  }
  model = std::move(layout.catalog);
  return worker.expect(model.files);
}

Result<SaveClaim> SaveClaim::make_model(const std::filesystem::path& directory,
                                        const std::vector<std::vector<HeldBox>>& held, const SaveOptions& options) {
  const SaveDirectory place = checkpointer::made_directory(directory);
  auto impl = std::make_unique<SaveClaim::Impl>(place.name, options);
  const InterruptScope interrupt_scope(impl->worker, options.interrupted);
  if (auto claimed = impl->claim_model(place, held, options); !claimed) {
    impl->worker.finish();
    impl->events.fail(claimed.error());
    return std::move(claimed).error().while_doing(saving_to(place.name));
  }
  return SaveClaim(std::move(impl));
}

const std::vector<ModelShare>& SaveClaim::model_shares() const { return impl_->shares; }
std::string SaveClaim::ticket() const { return commit::encode_ticket(impl_->ticket); }
SaveId SaveClaim::save_id() const { return impl_->ticket.identity.save_id; }
bool SaveClaim::may_have_committed() const { return impl_->worker.may_have_committed(); }

Result<SaveReport> SaveClaim::Impl::commit(std::string_view metadata, const std::vector<PublishedFile>& files) {
  CAIRN_TRY_ASSIGN(Catalog catalog, read_back(metadata, files));
  manifest::CommitRecord record;
  for (const PublishedFile& file : files) record.files.push_back({file.name, file.bytes, file.trailer_checksum});
  std::string front = std::string(metadata) + manifest::encode_notes(notes);
  CAIRN_TRY_ASSIGN(commit::CommitReport committed, worker.commit(std::move(front), std::move(record), durability));
  return SaveReport{ticket.identity.save_id, std::make_shared<Catalog>(std::move(catalog)), metadata.size(),
                    std::move(committed.warnings)};
}

Result<SaveReport> SaveClaim::Impl::commit_model(const std::vector<PublishedBox>& boxes) {
  std::map<std::pair<std::string_view, std::string_view>, std::size_t> planned;  // boxes by key and file
  for (const CatalogTensor& tensor : model.tensors) {
    for (const ItemLocation& location : tensor.locations) ++planned[{tensor.fqn, model.files[location.file]}];
  }
  commit::ModelContent content;
  content.files = model.files;
  for (const PublishedBox& box : boxes) {
    const auto found = planned.find({box.fqn, box.file});
    if (found == planned.end() || found->second == 0) {
      return Error(ErrorCode::kInvalidArgument, "a rank has written a box that is not in its share of the model")
          .key(box.fqn)
          .file(box.file);
    }
    --found->second;
    content.index.files.emplace_back(box.fqn, box.file);
    content.tensor_bytes += box.bytes;
  }
  for (const auto& [place, left] : planned) {
    if (left == 0) continue;
    return Error(ErrorCode::kInvalidArgument, "no rank has written a box of the model")
        .key(place.first)
        .file(place.second);
  }
  CAIRN_TRY_ASSIGN(commit::CommitReport committed, worker.commit_model(std::move(content), durability));
  return SaveReport{ticket.identity.save_id, nullptr, 0, std::move(committed.warnings)};
}

Result<SaveReport> SaveClaim::Impl::end(const std::function<bool()>& interrupted,
                                        const std::function<Result<SaveReport>()>& commit) {
  if (std::exchange(ended, true)) {
    return Error(ErrorCode::kInvalidArgument, "the claim was already committed, or has failed");
  }
  const InterruptScope interrupt_scope(worker, interrupted);
  Result<SaveReport> report = commit();
  worker.end(report.has_value());
  report ? events.end(EventKind::kCommitted, report->bytes_written) : events.fail(report.error());
  if (!report) return std::move(report).error().while_doing(saving_to(directory));
  return report;
}

Result<SaveReport> SaveClaim::commit(std::string_view metadata, const std::vector<PublishedFile>& files,
                                     const std::function<bool()>& interrupted) {
  return impl_->end(interrupted, [&] { return impl_->commit(metadata, files); });
}

Result<SaveReport> SaveClaim::commit_model(const std::vector<PublishedBox>& boxes,
                                           const std::function<bool()>& interrupted) {
  return impl_->end(interrupted, [&] { return impl_->commit_model(boxes); });
}

void SaveClaim::withdraw(const std::function<bool()>& interrupted) {
  impl_->ended = true;
  const InterruptScope interrupt_scope(impl_->worker, interrupted);
  impl_->worker.finish();
  impl_->events.fail(withdrawn());
}

RankShare::RankShare(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RankShare::RankShare(RankShare&&) noexcept = default;
RankShare& RankShare::operator=(RankShare&&) noexcept = default;
RankShare::~RankShare() = default;

Result<void> RankShare::Impl::write(const SaveDirectory& directory, const checkpointer::RankPart& part,
                                    const StateDict& state, const SaveOptions& options) {
  CAIRN_TRY(worker.open(directory));
  CAIRN_TRY_ASSIGN(const checkpointer::SaveItems items, checkpointer::SaveItems::make(state));
  CAIRN_TRY_ASSIGN(std::unique_ptr<RankWriter> writer, RankWriter::make(part, items.sources()));
  return write(std::move(writer), options);
}

Result<void> RankShare::Impl::write_model(const SaveDirectory& directory, std::string_view share, std::uint32_t rank,
                                          const StateDict& state, const SaveOptions& options) {
  CAIRN_TRY_ASSIGN(const checkpointer::SaveAssignment assignment, checkpointer::decode_assignment(share));
  CAIRN_TRY(worker.open(directory));
  CAIRN_TRY_ASSIGN(const checkpointer::SaveItems items, checkpointer::SaveItems::make(state));
  if (items.sources().size() != assignment.items.size()) {
    return Error(ErrorCode::kInvalidArgument, "the rank's state differs from its share of the model")
        .rank(rank)
        .expected(std::to_string(assignment.items.size()) + " boxes")
        .actual(std::to_string(items.sources().size()) + " entries");
  }
  using Kind = safetensors::FileSet::Kind;
  const bool sharded = options.safetensors && options.safetensors->sharded;
  const checkpointer::RankPart part{assignment.ticket, rank, assignment.file_count};
  CAIRN_TRY_ASSIGN(
      std::unique_ptr<RankWriter> writer,
      RankWriter::make_model(part, items.sources(), assignment.files, sharded ? Kind::kShards : Kind::kIndexed));
  return write(std::move(writer), options);
}

Result<void> RankShare::Impl::write(std::unique_ptr<RankWriter> writer, const SaveOptions& options) {
  const std::vector<std::string> names = writer->names();
  places = writer->locations();
  CAIRN_TRY_ASSIGN(const std::vector<WrittenFile> written, worker.write(std::move(writer), options));
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < names.size(); ++i) {
    files.push_back({names[i], written[i].size, written[i].trailer_checksum});
    bytes += written[i].size;
  }
  events.step(EventKind::kWritten, bytes);
  return {};
}

Result<RankShare> checkpointer::write_share_in(const SaveDirectory& directory, std::string_view ticket,
                                               std::uint32_t rank, const StateDict& state, const SaveOptions& options) {
  auto impl = std::make_unique<RankShare::Impl>(directory, rank, options);
  const InterruptScope interrupt_scope(impl->worker, options.interrupted);
  const auto write = [&]() -> Result<void> {
    CAIRN_TRY_ASSIGN(const commit::SaveTicket decoded, commit::decode_ticket(ticket));
    return impl->write(directory, {decoded, rank, 0, options.file_per_item}, state, options);
  };
  if (auto written = write(); !written) {
    impl->worker.finish();
    impl->events.fail(written.error());
    return std::move(written).error().while_doing(saving_to(directory.name));
  }
  return RankShare(std::move(impl));
}

Result<RankShare> RankShare::write_model(const std::filesystem::path& directory, std::string_view ticket,
                                         std::uint32_t rank, const StateDict& state, const SaveOptions& options) {
  const SaveDirectory place = checkpointer::made_directory(directory);
  auto impl = std::make_unique<RankShare::Impl>(place, rank, options);
  const InterruptScope interrupt_scope(impl->worker, options.interrupted);
  if (auto written = impl->write_model(place, ticket, rank, state, options); !written) {
    impl->worker.finish();
    impl->events.fail(written.error());
    return std::move(written).error().while_doing(saving_to(place.name));
  }
  return RankShare(std::move(impl));
}

Result<RankShare> RankShare::write(const std::filesystem::path& directory, std::string_view ticket, std::uint32_t rank,
                                   const StateDict& state, const SaveOptions& options) {
  return checkpointer::write_share_in(checkpointer::made_directory(directory), ticket, rank, state, options);
}

const std::vector<PublishedFile>& RankShare::files() const { return impl_->files; }
const std::vector<ItemLocation>& RankShare::places() const { return impl_->places; }

void RankShare::hand_over() {
  (void)impl_->worker.hand_over_files();
  impl_->events.leave();
}

void RankShare::withdraw(const std::function<bool()>& interrupted) {
  const InterruptScope interrupt_scope(impl_->worker, interrupted);
  (void)impl_->worker.withdraw_files();
  impl_->worker.finish();
  impl_->events.fail(withdrawn());
}

}  // namespace cairn

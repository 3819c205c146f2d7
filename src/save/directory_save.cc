// The trainer's part of an asynchronous save of files.
//
// 1. Describe. Every rank lays its files out in an arena: the sizes alone say where the bytes go. The rank takes the
//    arena, and waits as a save of a checkpoint does. The coordinator's writer makes the new directory beside the
//    directory, and claims it (commit/directory/directory_commit.cc, step 1).
// 2. Agree. Every rank sends the names of its files to the coordinator. If no rank has failed, and no name occurs
//    twice, every rank gets the ticket.                                                              [gather, scatter]
// 3. Begin. The rank's writer joins the coordinator's writer in the new directory.
// 4. Stage, as in async_save_operation.cc, step 5.
//
// A failure before the tickets are scattered fails the save on all ranks. A rank that fails later leaves its error in a
// failure mark, which the writers of the remaining ranks read.
#include "save/directory_save.h"

#include <unordered_map>
#include <utility>

#include "commit/directory/new_directory.h"
#include "commit/job_identity.h"
#include "commit/save_ticket.h"
#include "core/attempt.h"
#include "core/checked.h"
#include "core/seeded_hash.h"
#include "format/manifest/varint.h"
#include "os/page_buffer.h"
#include "os/umask.h"
#include "save/agreed_plan.h"
#include "save/option_checks.h"
#include "save/staged_plan.h"
#include "storage/open_directory.h"

namespace cairn::checkpointer {
namespace {

Result<void> check_file_name(const std::string& name) {
  CAIRN_TRY(storage::check_name(name));
  if (name.find('/') == std::string::npos && !name.starts_with('.')) return {};
  return Error(ErrorCode::kInvalidArgument, "a file of the save with a folder in its name, or with a hidden name")
      .file(name);
}

}  // namespace

DirectorySave::DirectorySave(const AsyncSaveResources& resources, const std::filesystem::path& directory,
                             const AsyncSaveOptions& options)
    : resources_(resources),
      // A link at the name is followed: the commit replaces the directory that the link leads to.
      directory_(storage::resolved(directory)),
      options_(options),
      ranks_(options.save.collectives, options.save.coordinator_rank),
      place_(place_of(options.save, ranks_)) {}

std::string DirectorySave::new_directory(const SaveId& save_id) const {
  return (directory_.parent_path() / commit::name_of_new_directory({save_id, directory_.filename().string()})).string();
}

Result<AsyncSave> DirectorySave::run(const Result<const StateDict*>& state) {
  const auto rank_count = static_cast<std::uint32_t>(ranks_.size());
  events_ = events::Operation::begin(EventOperation::kSave, {directory_.string(), place_.rank, rank_count}, true);
  Result<AsyncSave> save = attempt([&] { return take_steps(state); });
  if (!save && !shared_) events_.fail(save.error());
  if (!save && shared_) shared_->fail(save.error());
  return save;
}

Result<AsyncSave> DirectorySave::take_steps(const Result<const StateDict*>& state) {
  CAIRN_TRY_ASSIGN(const std::string ticket,
                   ranks_.exchange(ranks_.attempt([&] { return prepare(state); }),  // (1), (2)
                                   [&](const std::vector<std::string>& messages) { return answer(messages); }));
  CAIRN_TRY_ASSIGN(ticket_, commit::decode_ticket(ticket));
  shared_->save_id = ticket_->identity.save_id;
  shared_->events.step(EventKind::kPlanned);
  Result<AsyncSave> save = ranks_.attempt([&] { return begin(); });
  if (!save && !is_with_writer_) {
    mark_failure_before_begin(new_directory(ticket_->identity.save_id), *ticket_, place_, options_.save.deadlines,
                              save.error());
  }
  return save;
}

// Step 1. Returns the message to the coordinator.
Result<std::string> DirectorySave::prepare(const Result<const StateDict*>& state) {
  if (!state) return state.error();
  CAIRN_TRY(check_asynchronous(options_.save));
  if (options_.save.alone_as_rank || !options_.save.notes.empty()) {
    return Error(ErrorCode::kUnsupported, "a save of files has no place for notes or for a rank that saves alone");
  }
  if (!directory_.has_filename()) {
    return Error(ErrorCode::kInvalidArgument, "the directory can't be replaced: choose a directory in it")
        .file(directory_.string());
  }
  auto shared = std::make_shared<StagedSave>();
  shared->directory = directory_.string();
  shared->links = resources_.links;
  if (ranks_.size() > 1) shared->rank = place_.rank;
  shared_ = std::move(shared);
  if (Result<void> laid_out = lay_out(**state); !laid_out) {
    shared_.reset();
    return std::move(laid_out).error();
  }
  const auto wait_max = ranks_.size() > 1 ? std::optional(memory_wait_max(options_.save.deadlines))
                                          : std::optional<std::chrono::milliseconds>();
  resources_.links->release_parked();
  auto arena = resources_.arenas->take(layout_->arena_bytes, options_.save.interrupted, wait_max);
  Result<void> started = arena ? start_writer(shared_, events_, *resources_.writer) : Result<void>(arena.error());
  if (!started) {
    shared_.reset();
    return std::move(started).error();
  }
  shared_->arena = *std::move(arena);
  if (ranks_.is_coordinator()) {
    const commit::SaveIdentity identity = commit::next_save_identity(commit::SaveForm::kDirectory);
    commit::ClaimOptions claim;
    claim.overwrite = options_.save.overwrite;
    const writer::ClaimRequest request{new_directory(identity.save_id), identity,           place_.rank, claim,
                                       options_.save.deadlines,         os::current_umask()};
    CAIRN_TRY_ASSIGN(ticket_, shared_->save->claim(request, {}));
  }
  CAIRN_TRY(sample_sources(*shared_, options_));
  std::string message;
  manifest::append_varint(message, names_.size());
  for (std::size_t i = 0; i < names_.size(); ++i) {
    manifest::append_text(message, names_[i]);
    manifest::append_varint(message, sizes_[i]);
  }
  return message;
}

// Lists the copies of step 4.
Result<void> DirectorySave::lay_out(const StateDict& state) {
  CAIRN_TRY_ASSIGN(shared_->items, SaveItems::make(state, ReadableMemory::kOfAnyDevice));
  const std::vector<data_file::ItemSource>& sources = shared_->items.sources();
  layout_->id = next_layout_id();
  std::size_t next = 0;  // of the sources
  for (const SavedFile& saved : *options_.files) {
    CAIRN_TRY(check_file_name(saved.name));
    if (saved.tensor_count > sources.size() - next) {
      return Error(ErrorCode::kInvalidArgument, "the state has fewer tensors than the files").file(saved.name);
    }
    const std::span<const data_file::ItemSource> own(sources.data() + next, saved.tensor_count);
    next += saved.tensor_count;
    data_file::PlainFile file;
    if (saved.is_torch_save) file.form = data_file::PlainFile::Form::kTorchSave;
    if (!saved.is_torch_save) file.payload_bytes.push_back(saved.bytes.size());
    for (const data_file::ItemSource& source : own) {
      if (source.tensor == nullptr) {
        return Error(ErrorCode::kInvalidArgument, "a value among the tensors of the files").key(source.entry->fqn);
      }
      file.payload_bytes.push_back(staging::form_of({&source.tensor->local, {}, 0}).bytes);
    }
    if (saved.is_torch_save) file.payload_bytes.push_back(saved.bytes.size());
    CAIRN_TRY_ASSIGN(const std::unique_ptr<data_file::Image> image, file.image(std::nullopt));
    const std::uint64_t begin = layout_->arena_bytes;
    std::size_t payload = 0;
    const auto copy_bytes = [&] {
      const std::string& held = shared_->file_bytes_held.emplace_back(saved.bytes);
      shared_->copies.push_back({nullptr, held, begin + image->payload_begin(payload++)});
    };
    if (!saved.is_torch_save) copy_bytes();
    for (const data_file::ItemSource& source : own) {
      shared_->copies.push_back(
          {&source.tensor->local, {}, begin + image->payload_begin(payload++), source.entry->fqn});
    }
    if (saved.is_torch_save) copy_bytes();
    names_.push_back(saved.name);
    sizes_.push_back(image->file_bytes());
    shared_->file_bytes += image->file_bytes();
    layout_->arena_bytes += align_up(image->file_bytes(), os::kPageBytes);
    layout_->files.push_back({begin, {}, std::move(file)});
  }
  if (next == sources.size()) return {};
  return Error(ErrorCode::kInvalidArgument, "the state has more tensors than the files").key(sources[next].entry->fqn);
}

// Step 2, at the coordinator: the messages to the ranks.
Result<std::vector<std::string>> DirectorySave::answer(const std::vector<std::string>& messages) {
  std::unordered_map<std::string, std::size_t, SeededHash> owners;
  auto& files = layout_->directory_files.emplace();
  for (std::size_t rank = 0; rank < messages.size(); ++rank) {
    manifest::CodedReader reader(messages[rank]);
    std::vector<writer::StagedLayout::NamedFile>& of_rank = files.emplace_back();
    CAIRN_TRY_ASSIGN(const std::uint64_t count, reader.count());
    for (std::uint64_t i = 0; i < count; ++i) {
      CAIRN_TRY_ASSIGN(const std::string_view text, reader.counted_text());
      const std::string name(text);
      CAIRN_TRY_ASSIGN(const std::uint64_t bytes, reader.varint());
      of_rank.push_back({name, bytes});
      const auto [owner, is_new] = owners.emplace(name, rank);
      if (is_new) continue;
      return Error(ErrorCode::kInvalidArgument, "two files of the save have one name (the other is of rank " +
                                                    std::to_string(owner->second) +
                                                    "): give each rank's file a name of its own")
          .file(name)
          .rank(static_cast<std::int64_t>(rank));
    }
  }
  return std::vector<std::string>(messages.size(), commit::encode_ticket(*ticket_));
}

// Step 3.
Result<AsyncSave> DirectorySave::begin() {
  writer::SaveRequest request = save_request(*shared_, options_, layout_);
  request.directory = new_directory(ticket_->identity.save_id);
  request.ticket = *ticket_;
  request.place = place_;
  request.names = names_;
  shared_->arena->forget_staged();
  is_with_writer_ = true;  // from now on the writer reports a failure to the remaining ranks
  CAIRN_TRY(shared_->save->begin(request));
  return stage_in_background_or_now(shared_, options_, layout_->arena_bytes, resources_.in_background);  // (4)
}

Error abandon_directory_save(coordination::Ranks& ranks, const Error& reason) {
  const auto no_answer = [](const std::vector<std::string>&) -> Result<std::vector<std::string>> {
    return Error(ErrorCode::kInternal, "a failed rank agreed");
  };
  const Result<std::string> outcome = ranks.exchange(reason, no_answer);
  return outcome ? reason : outcome.error();
}

}  // namespace cairn::checkpointer

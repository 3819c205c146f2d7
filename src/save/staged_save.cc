#include "save/staged_save.h"

#include <chrono>
#include <utility>

#include "core/attempt.h"
#include "events/work.h"
#include "os/call_within.h"
#include "os/process_identity.h"
#include "os/umask.h"
#include "save/rank_differences.h"
#include "staging/snapshot_copy.h"
#include "storage/open_directory.h"

namespace cairn::checkpointer {
namespace {

// The coordinator's writer gives the save up if begin() has not come one progress deadline after the claim. The
// remaining ranks' writers give the save up if this rank's writer has not started within the deadline. A rank may wait
// for memory before the claim, and then a second rank before begin(). Each wait is limited to a third of the deadline,
// which leaves a third for the steps between. Then all ranks report the lack of memory, not a missing rank.
constexpr int kMemoryWaitShare = 3;

// The wait for copies by devices that were queued before a failure.
constexpr std::chrono::milliseconds kSettleMax{1000};

// After the copies: prepares the arena for the next save. After a failure the devices may still write into the arena:
// the arena then stays out of use until they are done. The devices may also still read the tensors: then the caller's
// streams wait, and after an asynchronous staging the streams of the next fence.
void leave_devices(StagedSave& shared, bool is_staged, bool is_on_callers_thread) {
  if (shared.devices == nullptr) return;
  if (is_staged) {
    shared.devices->register_beside(*shared.arena);
  } else if (!shared.devices->settle(kSettleMax)) {
    if (is_on_callers_thread) shared.devices->hold_back_caller();
    shared.arena->note_stuck();
    staging::DeviceSources::park(std::move(shared.devices), shared.arena);
  }
  shared.devices.reset();
}

// May run on a background thread, so no exception may leave the function.
Result<void> stage(StagedSave& shared, const staging::CopyOptions& options) {
  Result<void> staged = attempt([&] { return staging::copy_into(*shared.arena, shared.copies, options); });
  // After a failure the copies do not matter to the save, but the trainer may free the tensors.
  shared.fence.open(staged || !shared.devices ? staging::DeviceSources::Marks() : shared.devices->marks());
  (void)attempt([&]() -> Result<void> {
    if (staged) shared.events.step(EventKind::kStaged, shared.file_bytes);
    if (staged) return shared.save->staged();  // the write future reports a lost writer
    shared.abandon(staged.error());
    return {};
  });
  shared.is_staged = staged.has_value();
  leave_devices(shared, staged.has_value(), !options.samples);
  shared.arena.reset();
  shared.copies.clear();
  shared.samples = {};
  shared.items = SaveItems();  // may hold large values
  shared.file_bytes_held.clear();
  const auto reported = [&]() -> Result<void> { return staged ? Result<void>() : shared.named(staged.error()); };
  shared.staging.set_value(attempt(reported));
  return staged;
}

}  // namespace

SaveProgress StagedSave::progress() const {
  if (const std::uint64_t bytes = bytes_written) return {SavePhase::kEnded, bytes, bytes};
  const commit::ProgressReport report = save->progress();
  SaveProgress progress{report.phase, report.bytes_written, report.bytes_total};
  if (is_staged && progress.phase == SavePhase::kStaging) progress.phase = SavePhase::kWriting;
  if (progress.bytes_total == 0) progress.bytes_total = file_bytes;
  return progress;
}

void StagedSave::fail(const Error& reason) {
  events.fail(named(reason));  // before the writer reports the end
  abandon(reason);
  devices.reset();  // here and not on the writer's thread: samples may hold back the caller's streams
}

void StagedSave::end(Result<commit::RankSaveReport> outcome) {
  if (!outcome) {
    events.fail(named(outcome.error()));
    write.set_value(attempt([&]() -> Result<AsyncSaveReport> { return named(outcome.error()); }));
    return;
  }
  events.end(EventKind::kCommitted, outcome->bytes_written);
  bytes_written = outcome->bytes_written;
  if (differences && note_differences()) outcome->warnings.push_back(*std::move(differences));
  // The arena is registered while the files are written, so a refusal is known by now.
  if (auto refusal = links ? links->untold_refusal() : std::nullopt) outcome->warnings.push_back(*std::move(refusal));
  if (parts_warning) outcome->warnings.push_back(*parts_warning);
  events::add_trace_problem(outcome->warnings);
  write.set_value(AsyncSaveReport{save_id, render_metadata, outcome->bytes_written, std::move(outcome->warnings)});
}

std::chrono::milliseconds memory_wait_max(const SaveDeadlines& deadlines) {
  return deadlines.progress / kMemoryWaitShare;
}

Result<void> start_writer(const std::shared_ptr<StagedSave>& shared, events::Operation& events,
                          writer::SaveWriter& writer) {
  writer::SaveWriter::Written report_written;
  if (events.is_told()) {
    // Weak: shared->save keeps the function. The function of the outcome keeps the state alive until the save ends.
    report_written = [weak = std::weak_ptr(shared)](const writer::WrittenFiles& written) {
      const auto alive = weak.lock();
      if (alive) alive->events.step_of(written.process_id, EventKind::kWritten, written.time, written.bytes);
    };
  }
  shared->events = std::move(events);
  auto started = writer.start([shared](Result<commit::RankSaveReport> outcome) { shared->end(std::move(outcome)); },
                              std::move(report_written));
  if (!started) {
    events = std::move(shared->events);
    return std::move(started).error();
  }
  shared->save = std::move(*started);
  return {};
}

Result<void> sample_sources(StagedSave& shared, const AsyncSaveOptions& options) {
  std::optional<std::uint64_t> sample_seed;
  if (options.asynchronous_staging && options.torn_snapshot_alarm) sample_seed = os::random_128().low;
  // First the devices: they work while the CPU reads its samples.
  CAIRN_TRY_ASSIGN(shared.devices, staging::DeviceSources::mark(shared.copies, shared.links, sample_seed));
  if (sample_seed) shared.samples = staging::SourceSamples::take(shared.copies, *sample_seed);
  return {};
}

writer::SaveRequest save_request(const StagedSave& shared, const AsyncSaveOptions& options,
                                 std::shared_ptr<const writer::StagedLayout> layout) {
  writer::SaveRequest request;
  request.arena = shared.arena;
  request.layout = std::move(layout);
  request.durability = options.save.durability;
  request.thread_count = options.save.thread_count;
  request.direct_io = options.save.direct_io;
  request.trainer_waits = !options.asynchronous_staging;
  request.deadlines = options.save.deadlines;
  request.umask = os::current_umask();
  return request;
}

Result<AsyncSave> stage_in_background_or_now(const std::shared_ptr<StagedSave>& shared, const AsyncSaveOptions& options,
                                             std::uint64_t arena_bytes,
                                             const std::function<Result<void>(std::function<void()>)>& in_background) {
  AsyncSave handle;
  handle.staging = shared->staging.get_future().share();
  handle.write = shared->write.get_future().share();
  handle.progress = [kept = shared] { return kept->progress(); };
  shared->events.work().measure([weak = std::weak_ptr(shared)](WorkCount& count) {
    const std::shared_ptr<StagedSave> kept = weak.lock();
    if (!kept) return;
    const SaveProgress progress = kept->progress();
    count.total = progress.bytes_total;
    count.done = progress.bytes_written;
  });
  handle.fence = [kept = shared](const Device& device, std::chrono::milliseconds timeout) -> Result<bool> {
    if (!kept->fence.wait_open(timeout)) return false;
    CAIRN_TRY(kept->fence.make_wait(device));
    return true;
  };
  staging::CopyOptions copying;
  copying.arena_bytes = arena_bytes;
  copying.devices = shared->devices.get();
  copying.fence = &shared->fence;
  copying.stall_max = options.save.deadlines.progress;
  if (options.asynchronous_staging) {
    copying.samples = &shared->samples;
    copying.confirm = options.confirm_sources;
    CAIRN_TRY(in_background([kept = shared, copying] { (void)stage(*kept, copying); }));
    return handle;
  }
  copying.interrupted = options.save.interrupted;
  CAIRN_TRY(stage(*shared, copying));
  return handle;
}

void mark_failure_before_begin(const std::string& directory, const commit::SaveTicket& ticket,
                               const commit::RankPlace& place, const SaveDeadlines& deadlines, const Error& reason) {
  if (place.is_coordinator()) return;
  (void)os::call_within(deadlines.publish, [directory, ticket, place, reason] {
    return attempt([&]() -> Result<void> {
      const bool is_made = ticket.identity.form == commit::SaveForm::kDirectory;  // by the coordinator
      CAIRN_TRY_ASSIGN(auto storage, is_made ? storage::open_directory(directory) : storage::make_directory(directory));
      const auto save = commit::RankSave::join(std::move(storage), ticket);
      save->fail_before_entry(place, reason);
      return {};
    });
  });
}

}  // namespace cairn::checkpointer

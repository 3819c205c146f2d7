// A save:
//
// 1. The ranks learn whether a save is due (ManagedRun::due). The save before must have ended: all ranks know its
//    outcome, and all or none find too many failures. At a stop the wait for it ends with the grace: the rank takes
//    part in the save of the stop with that reason, which fails on all ranks.
// 2. A rank that can't begin takes part in the save with its reason: all ranks fail.
// 3. The background save begins. A failure that only the storage or a rank causes is counted, and the training goes on;
//    a failure that every later save would have too (a wrong argument) fails the call.
// 4. A thread waits for the end of the save and counts it.
// 5. The save of a stop is awaited, until the grace since step 1 has passed.
#include <cairn/async_checkpointer.h>
#include <cairn/managed_run.h>
#include <unistd.h>

#include <thread>
#include <utility>

#include "os/start_thread.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;

std::optional<Error> fault_of(const std::shared_future<Result<AsyncSaveReport>>& write) {
  const Result<AsyncSaveReport>& report = write.get();
  return report ? std::nullopt : std::optional(report.error());
}

// A save that has failed before its copy.
AsyncSave failed_save(const Error& error) {
  std::promise<Result<void>> staging;
  staging.set_value(error);
  std::promise<Result<AsyncSaveReport>> write;
  write.set_value(error);
  AsyncSave save;
  save.staging = staging.get_future().share();
  save.write = write.get_future().share();
  save.progress = [] { return SaveProgress{.phase = SavePhase::kEnded}; };
  save.fence = [](const Device&, std::chrono::milliseconds) { return Result<bool>(true); };
  return save;
}

// An argument that the system refuses is a fault of the storage: a file system may be read-only for a while.
bool is_lasting(const Error& error) {
  if (error.code() == ErrorCode::kInvalidArgument) return error.error_number() == 0;
  return error.code() == ErrorCode::kUnsupported || error.code() == ErrorCode::kCancelled;
}

}  // namespace

struct CheckpointManager::Impl {
  explicit Impl(CheckpointManagerOptions given) : options(std::move(given)), checkpointer(options.checkpointer) {}

  using Clock = std::chrono::steady_clock;

  // Whether the save before has ended, and is counted. Without `end` waits for it.
  bool finish(std::optional<Clock::time_point> end = std::nullopt) {
    if (end && last && last->write.wait_until(*end) != std::future_status::ready) return false;
    if (follower.joinable()) follower.join();
    return true;
  }
  AsyncSave leave_stop();
  Result<void> follow(const AsyncSave& save);
  Result<AsyncSave> begin(std::uint64_t step, const StateDict& state, const ManagedSave& managed);
  void await_stop(Clock::time_point end);

  const pid_t process = getpid();
  CheckpointManagerOptions options;
  AsyncCheckpointer checkpointer;
  std::unique_ptr<ManagedRun> run;
  std::optional<AsyncSave> last;
  std::jthread follower;
  bool is_preempted = false;
};

CheckpointManager::CheckpointManager(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CheckpointManager::CheckpointManager(CheckpointManager&&) noexcept = default;
CheckpointManager& CheckpointManager::operator=(CheckpointManager&&) noexcept = default;
CheckpointManager::~CheckpointManager() {
  if (impl_ == nullptr) return;
  if (getpid() != impl_->process) {
    (void)impl_.release();  // in a child made by fork: the thread of the last save is the parent's
    return;
  }
  try {
    (void)close();
  } catch (...) {  // out of memory: ManagedRun's destructor closes the run
  }
}

Result<CheckpointManager> CheckpointManager::open(const fs::path& root, CheckpointManagerOptions options) {
  if (options.checkpointer.process == nullptr && options.writer_process) {
    options.checkpointer.process = CheckpointProcess::make();
  }
  options.checkpointer.overlap = true;  // save() itself waits; a failed save must not fail the next one too
  options.save.save.collectives = options.run.collectives;
  // The name of a step may meet a checkpoint of an earlier course of the run.
  options.save.save.overwrite_pinned = false;
  options.load.collectives = options.run.collectives;
  auto impl = std::make_unique<Impl>(std::move(options));
  CAIRN_TRY_ASSIGN(impl->run, ManagedRun::open(root, impl->options.run));
  return CheckpointManager(std::move(impl));
}

Result<std::optional<std::uint64_t>> CheckpointManager::restore(StateDict& state) {
  std::optional<Error> fault;
  while (true) {
    CAIRN_TRY_ASSIGN(const std::optional<fs::path> directory, impl_->run->next_checkpoint(fault));
    if (!directory) return std::optional<std::uint64_t>();
    const Result<LoadReport> loaded = load(*directory, state, impl_->options.load);
    if (loaded) return std::optional(impl_->run->resumed());
    fault = loaded.error();
  }
}

Result<std::optional<AsyncSave>> CheckpointManager::save(std::uint64_t step, const StateDict& state,
                                                         const std::map<std::string, double>& metrics, bool force) {
  CAIRN_TRY_ASSIGN(const Due due, impl_->run->due(step));  // (1)
  if (due == Due::kNo && !force) return std::optional<AsyncSave>();
  const bool is_stop = due == Due::kStop;
  impl_->is_preempted = impl_->is_preempted || is_stop;
  const auto begun = Impl::Clock::now();
  const auto grace_ends = begun + impl_->options.grace;
  if (!impl_->finish(is_stop ? std::optional(grace_ends) : std::nullopt)) return std::optional(impl_->leave_stop());
  const ManagedSave managed{.metrics = metrics, .is_forced = force, .waited = Impl::Clock::now() - begun};
  CAIRN_TRY_ASSIGN(AsyncSave save, impl_->begin(step, state, managed));
  impl_->last = save;
  if (is_stop) impl_->await_stop(grace_ends);  // (5)
  impl_->run->began();
  return std::optional(std::move(save));
}

// On a rank whose save before has not ended within the grace.
AsyncSave CheckpointManager::Impl::leave_stop() {
  Error error(ErrorCode::kUnavailable, "the save before the stop has not ended within the grace of " +
                                           std::to_string(options.grace.count()) +
                                           " ms, and the save of the stop is not made; a writer process goes on with "
                                           "the save before");
  if (options.run.warn) options.run.warn(error);
  if (options.save.save.collectives != nullptr) (void)checkpointer.abandon_save(error, options.save);
  return failed_save(error);
}

Result<AsyncSave> CheckpointManager::Impl::begin(std::uint64_t step, const StateDict& state,
                                                 const ManagedSave& managed) {
  Result<SaveStart> start = run->begin(step, managed);
  if (!start) {  // (2)
    if (options.save.save.collectives == nullptr) return std::move(start).error();
    return checkpointer.abandon_save(start.error(), options.save);
  }
  AsyncSaveOptions save_options = options.save;
  save_options.save.notes = start->notes;
  Result<AsyncSave> save = checkpointer.save(start->directory, state, save_options);  // (3)
  if (!save) {
    run->began();
    run->ended(save.error());
    if (is_lasting(save.error())) return save;
    return failed_save(save.error());
  }
  CAIRN_TRY(follow(*save));
  return save;
}

Result<void> CheckpointManager::Impl::follow(const AsyncSave& save) {  // (4)
  const auto work = [this, write = save.write] { run->ended(fault_of(write)); };
  Result<std::jthread> thread = os::start_thread<std::jthread>("to wait for a save", work);
  if (thread) {
    follower = *std::move(thread);
  } else {
    work();
  }
  return {};
}

void CheckpointManager::Impl::await_stop(std::chrono::steady_clock::time_point end) {
  if (last->write.wait_until(end) == std::future_status::ready || !options.run.warn) return;
  options.run.warn(Error(ErrorCode::kUnavailable, "the save of the stop is not durable within the grace of " +
                                                      std::to_string(options.grace.count()) +
                                                      " ms; a writer process goes on with it"));
}

bool CheckpointManager::preempted() const { return impl_->is_preempted; }

ManagedRun& CheckpointManager::run() { return *impl_->run; }

Result<void> CheckpointManager::wait() {
  if (!impl_->last) return {};
  impl_->finish();
  const std::optional<Error> fault = fault_of(impl_->last->write);
  return fault ? Result<void>(*fault) : Result<void>();
}

Result<void> CheckpointManager::close() {
  const Result<void> waited = wait();
  impl_->last.reset();
  Result<void> ended = impl_->checkpointer.close();
  CAIRN_TRY(impl_->run->close());
  CAIRN_TRY(waited);
  return ended;
}

}  // namespace cairn

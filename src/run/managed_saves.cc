// A save:
//
// 1. The ranks learn whether a save is due (ManagedRun::due). A forced save is made even if the ranks can't agree on
//    stops any more. The save before must have ended. At a stop the wait for it ends with the grace.
// 2. The ranks exchange their step, and how they stand. A stop of one is a stop of all, also if the ranks have not
// agreed on it yet. If the save before has not ended on a rank, the
//    save fails on all ranks. If a rank can't begin, the call fails on all ranks.
// 3. The background save begins. A failure that only the storage or a rank causes is counted, and the training goes on;
//    a failure that every later save would have too (a wrong argument) fails the call.
// 4. A thread waits for the end of the save and counts it.
// 5. The save of a stop is awaited, until the grace since step 1 has passed.
#include <cairn/async_checkpointer.h>
#include <cairn/managed_run.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "coordination/ranks.h"
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

// A rank could not hear of an agreed step, or the program is wrong.
Error different_steps(std::int64_t first, std::int64_t last) {
  return Error(ErrorCode::kInvalidArgument, "the ranks save at different steps, and their states don't belong together")
      .expected("one step")
      .actual("the steps " + std::to_string(first) + " to " + std::to_string(last));
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

  // Waits until the save before has ended and is counted.
  void finish() {
    if (follower.joinable()) follower.join();
  }
  bool finish_or_stop(bool& is_stop, Clock::time_point& grace_ends);
  // How a rank stands before a save.
  struct Standing {
    bool is_stop = false;
    bool has_ended = false;  // the save before
    Result<SaveStart> start = Error(ErrorCode::kUnavailable, "the save before has not ended");
  };
  Result<Standing> agree(std::uint64_t step, Standing mine);
  Error not_ended() const;
  Result<void> follow(const AsyncSave& save);
  Result<AsyncSave> begin(const SaveStart& start, const StateDict& state);
  void await_stop(Clock::time_point end);

  const pid_t process = getpid();
  const int exceptions = std::uncaught_exceptions();
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
    (void)close(std::uncaught_exceptions() > impl_->exceptions);
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
  Impl& self = *impl_;
  const Result<Due> due = self.run->due(step);  // (1)
  const bool is_disagreement = !due && due.error().code() == ErrorCode::kUnavailable;
  if (!due && !(force && is_disagreement)) return due.error();
  if (due && *due == Due::kNo && !force) return std::optional<AsyncSave>();
  const auto begun = Impl::Clock::now();
  auto grace_ends = begun + self.options.grace;
  Impl::Standing mine;
  mine.is_stop = (due && *due == Due::kStop) || self.run->is_stop_requested();
  mine.has_ended = self.finish_or_stop(mine.is_stop, grace_ends);
  if (mine.has_ended) {
    mine.start = self.run->begin(step, {.metrics = metrics, .is_forced = force, .waited = Impl::Clock::now() - begun});
  }
  CAIRN_TRY_ASSIGN(const Impl::Standing all, self.agree(step, std::move(mine)));  // (2)
  if (!all.has_ended) return std::optional(failed_save(all.start.error()));
  CAIRN_TRY_ASSIGN(AsyncSave save, self.begin(*all.start, state));
  self.last = save;
  if (all.is_stop) self.await_stop(grace_ends);  // (5)
  self.run->began();
  return std::optional(std::move(save));
}

// (2) An error if a rank can't begin. `start` is this rank's, or the reason for which the save fails on all ranks.
Result<CheckpointManager::Impl::Standing> CheckpointManager::Impl::agree(std::uint64_t step, Standing mine) {
  coordination::Ranks ranks(options.run.collectives, 0);
  const bool has_begun = mine.has_ended && mine.start;
  const bool can_begin = has_begun || !mine.has_ended;
  const auto number = static_cast<std::int64_t>(step);
  const Result<std::vector<std::int64_t>> smallest =
      ranks.smallest({can_begin ? 1 : 0, mine.has_ended ? 1 : 0, mine.is_stop ? 0 : 1, number, -number});
  const bool is_one_step = smallest && (*smallest)[3] == -(*smallest)[4];
  const bool is_made = is_one_step && (*smallest)[0] == 1 && (*smallest)[1] == 1;
  if (smallest) mine.is_stop = (*smallest)[2] == 0;
  if (mine.is_stop) run->agreed_to_stop();
  is_preempted = is_preempted || mine.is_stop;
  if (!is_made) run->dropped();  // on all ranks: a stop stays due on all of them
  if (!smallest) return smallest.error();
  if (!is_one_step) return different_steps((*smallest)[3], -(*smallest)[4]);
  if (is_made) return mine;
  Error reason = not_ended();
  if ((*smallest)[0] == 0) {
    Result<std::string> outcome = has_begun || can_begin ? Result<std::string>(std::string()) : mine.start.error();
    const auto answer = [&ranks](const std::vector<std::string>&) -> Result<std::vector<std::string>> {
      return std::vector<std::string>(ranks.size());
    };
    const Result<std::string> answered = ranks.exchange(std::move(outcome), answer);
    return answered ? Error(ErrorCode::kInternal, "a rank can't begin a save, and gives no reason") : answered.error();
  }
  if (options.run.warn) options.run.warn(reason);
  mine.has_ended = false;
  mine.start = std::move(reason);
  return mine;
}

// (1) False: the save before has not ended when the grace of a stop ends. A stop that is asked for meanwhile counts.
bool CheckpointManager::Impl::finish_or_stop(bool& is_stop, Clock::time_point& grace_ends) {
  constexpr std::chrono::milliseconds kLook{200};
  while (last && last->write.wait_for(kLook) != std::future_status::ready) {
    if (is_stop && Clock::now() >= grace_ends) return false;
    if (is_stop || !run->is_stop_requested()) continue;
    is_stop = true;
    grace_ends = Clock::now() + options.grace;
  }
  finish();
  is_stop = is_stop || run->is_stop_requested();
  return true;
}

Error CheckpointManager::Impl::not_ended() const {
  return {ErrorCode::kUnavailable,
          "the save before the stop has not ended on all ranks within the grace of " +
              std::to_string(options.grace.count()) +
              " ms, and the save of the stop is not made; a writer process goes on with the save before"};
}

Result<AsyncSave> CheckpointManager::Impl::begin(const SaveStart& start, const StateDict& state) {
  AsyncSaveOptions save_options = options.save;
  save_options.save.notes = start.notes;
  Result<AsyncSave> save = checkpointer.save(start.directory, state, save_options);  // (3)
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

Result<void> CheckpointManager::close(bool has_failed) {
  const Result<void> waited = wait();
  impl_->last.reset();
  Result<void> ended = impl_->checkpointer.close();
  CAIRN_TRY(impl_->run->close(has_failed));
  CAIRN_TRY(waited);
  return ended;
}

}  // namespace cairn

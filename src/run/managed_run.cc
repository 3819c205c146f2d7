#include <cairn/bucket_url.h>
#include <cairn/managed_run.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <mutex>
#include <system_error>
#include <utility>

#include "checkpoint/save_wait.h"
#include "coordination/ranks.h"
#include "core/step_in_name.h"
#include "os/parent_signals.h"
#include "os/process_identity.h"
#include "os/signal_watch.h"
#include "run/background_removal.h"
#include "run/managing_lease.h"
#include "run/restore_order.h"
#include "run/run_account.h"
#include "run/run_listing.h"
#include "run/run_notes.h"
#include "run/save_clock.h"
#include "run/step_agreement.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kRemovalAtEndMax{10};

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Result<std::string> name_of_step(const std::string& pattern, std::uint64_t step) {
  try {
    return fmt::format(fmt::runtime(pattern), fmt::arg("step", step));
  } catch (const fmt::format_error& error) {
    return Error(ErrorCode::kInvalidArgument,
                 "the name of the steps' directories is no format: '" + pattern + "': " + error.what())
        .expected("a name such as 'step-{step}'");
  }
}

Result<void> check_name(const std::string& pattern) {
  for (const std::uint64_t step : {std::uint64_t{7}, std::uint64_t{1234567}}) {
    CAIRN_TRY_ASSIGN(const std::string name, name_of_step(pattern, step));
    const bool is_one_name = !name.empty() && name.find('/') == std::string::npos && !name.starts_with(".cairn-");
    if (is_one_name && step_in_name(name) == step) continue;
    return Error(ErrorCode::kInvalidArgument, "'" + pattern + "' is no name for the steps' directories")
        .expected("a name without '/' whose number is the step, such as 'step-{step}'")
        .actual("'" + name + "' for step " + std::to_string(step));
  }
  return {};
}

Result<void> check(const ManagedRunOptions& options) {
  CAIRN_TRY(check_name(options.name));
  const SaveSchedule& schedule = options.schedule;
  if (schedule.every_steps == 0U) return Error(ErrorCode::kInvalidArgument, "a save each 0 steps can't be made");
  if (options.failures_in_a_row == 0) {
    return Error(ErrorCode::kInvalidArgument, "the number of failures in a row must be at least 1");
  }
  const bool needs_clock = schedule.every.has_value() || schedule.automatic;
  if (needs_clock && options.collectives != nullptr && options.collectives->size() > 1 && options.store == nullptr) {
    return Error(ErrorCode::kInvalidArgument,
                 "saves by the clock need a store by which rank 0 tells the other ranks, or saves each so many steps");
  }
  return {};
}

Error closed_error() { return {ErrorCode::kInvalidArgument, "the run is closed"}; }

// A text of parts that hold no 0 byte.
std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += part + '\0';
  return text;
}

std::vector<std::string> parted(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\0', begin);
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string encode(const std::optional<run::FailedProcess>& process) {
  return process ? fmt::format("{} {}", process->started, process->last_sign) : std::string();
}

std::optional<run::FailedProcess> decode(const std::string& text) {
  const char* const end = text.data() + text.size();
  run::FailedProcess process;
  const auto started = std::from_chars(text.data(), end, process.started);
  if (started.ec != std::errc() || started.ptr == end) return std::nullopt;
  const auto last_sign = std::from_chars(started.ptr + 1, end, process.last_sign);
  return last_sign.ec == std::errc() ? std::optional(process) : std::nullopt;
}

}  // namespace

struct ManagedRun::Impl {
  Impl(fs::path directory, ManagedRunOptions given)
      : root(std::move(directory)),
        options(std::move(given)),
        ranks(options.collectives, 0),
        clock(options.schedule),
        account(seconds_since_1970()) {}

  void warn(const Error& error) const {
    if (options.warn) options.warn(error);
  }
  Result<std::string> take(std::vector<std::string> all);
  Result<std::string> choose(const std::optional<Error>& fault);
  Error too_many_failures();
  Result<void> go_without_answer();
  void note_failure();
  void learn() { clock.learn(account.costs(), account.report(seconds_since_1970())); }

  bool is_of_a_fork() const { return getpid() != process; }

  const pid_t process = getpid();
  const fs::path root;
  const ManagedRunOptions options;
  coordination::Ranks ranks;
  run::SaveClock clock;  // of rank 0
  run::RunAccount account;
  std::shared_ptr<run::ManagingLease> lease;  // of rank 0
  std::unique_ptr<run::StepAgreement> agreement;
  std::unique_ptr<run::BackgroundRemoval> removal;  // of rank 0
  std::unique_ptr<os::SignalWatch> signals;         // after `agreement`: requests stops of it
  std::optional<run::RestoreOrder> restore_order;   // of rank 0
  fs::path chosen;
  std::string chosen_notes;
  std::optional<run::FailedProcess> failed;  // before this process, as rank 0 knows it
  bool has_noted_failure = false;
  bool has_resumed = false;
  bool is_save_requested = false;  // of rank 0: due by the clock, and not yet agreed on
  std::optional<std::pair<std::uint64_t, Due>> last_due;
  std::uint64_t ends_of_steps = 0;  // crossed. Steps of a caller may descend: a restore goes back
  bool has_warned = false;          // of a request without an answer
  bool has_begun = false;           // begin(), and neither began() nor dropped() since
  bool is_stop_unsaved = false;     // no save has begun since the stop
  std::atomic<bool> is_stopping{false};
  std::atomic<bool> is_stop_requested{false};
  std::mutex mutex;                   // of the following, and of the end of `agreement` and `removal`
  std::uint32_t failures = 0;         // in a row
  std::optional<Error> last_failure;  // of these
  bool is_closed = false;
};

ManagedRun::ManagedRun(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ManagedRun::~ManagedRun() {
  if (impl_ == nullptr) return;
  if (impl_->is_of_a_fork()) {
    (void)impl_.release();  // its threads are the parent's
    return;
  }
  try {
    (void)close();
  } catch (...) {  // out of memory: the lease stays, and the next manager of this host takes it over
  }
}

// At rank 0, when all ranks have come to open(): the prefix of the keys in the store.
Result<std::string> ManagedRun::Impl::take(std::vector<std::string> /*all*/) {
  CAIRN_TRY_ASSIGN(lease, run::ManagingLease::take(root));
  std::optional<PruneOptions> rule;
  if (options.keep) rule = PruneOptions{.rule = *options.keep, .adopt = options.adopt};
  CAIRN_TRY_ASSIGN(removal, run::BackgroundRemoval::start(root, rule, lease, options.warn));
  const os::Random128 id = os::random_128();
  return "cairn-run/" + to_hex(SaveId{id.high, id.low}) + "/";
}

Result<std::unique_ptr<ManagedRun>> ManagedRun::open(const fs::path& root, ManagedRunOptions options) {
  std::error_code failure;
  // The program may change its working directory later.
  fs::path absolute = is_bucket_url(root) ? root : fs::absolute(root, failure);
  if (failure) return Error::from_errno(failure.value(), "finding the working directory").file(root.string());
  auto impl = std::make_unique<Impl>(std::move(absolute), std::move(options));
  coordination::Ranks& ranks = impl->ranks;
  const Result<void> checked = check(impl->options);
  Result<std::string> mine = checked ? Result<std::string>(std::string()) : Result<std::string>(checked.error());
  const auto take = [&](std::vector<std::string> all) -> Result<std::vector<std::string>> {
    CAIRN_TRY_ASSIGN(const std::string prefix, impl->take(std::move(all)));
    return std::vector<std::string>(ranks.size(), prefix);
  };
  CAIRN_TRY_ASSIGN(const std::string prefix, ranks.exchange(std::move(mine), take));
  const bool has_store = ranks.size() > 1;
  CAIRN_TRY_ASSIGN(impl->agreement, run::StepAgreement::start({.store = has_store ? impl->options.store : nullptr,
                                                               .rank = ranks.rank(),
                                                               .size = ranks.size(),
                                                               .prefix = prefix,
                                                               .deadline = impl->options.agreement_deadline,
                                                               .warn = impl->options.warn}));
  auto managed = std::make_unique<ManagedRun>(std::move(impl));
  Impl& self = *managed->impl_;
  if (self.options.stop_signals.empty()) return managed;
  const auto stop = [&self, &run = *managed](int) {
    const Result<void> requested = run.request_stop();
    if (!requested) self.warn(requested.error());
  };
  CAIRN_TRY_ASSIGN(self.signals, os::SignalWatch::start(self.options.stop_signals, stop, self.options.uncalled_before));
  return managed;
}

// At rank 0: the failed process before, the directory, its notes, and the warnings. Without a checkpoint the
// first alone.
Result<std::string> ManagedRun::Impl::choose(const std::optional<Error>& fault) {
  if (fault && restore_order) {
    restore_order->pass_over(*fault);
  } else {
    restore_order.reset();
    CAIRN_TRY_ASSIGN(const bool have_ended,
                     checkpointer::wait_for_saves(root, options.wait_for_saves, options.interrupted));
    if (!have_ended) {
      warn(Error(ErrorCode::kUnavailable, "a save of an earlier process has not ended within " +
                                              std::to_string(options.wait_for_saves.count()) +
                                              " ms: if it commits later, the run has resumed from an older checkpoint")
               .file(root.string()));
    }
    CAIRN_TRY_ASSIGN(restore_order, run::RestoreOrder::of(root));
  }
  CAIRN_TRY_ASSIGN(const std::optional<fs::path> directory, restore_order->next());
  const std::string before = encode(lease != nullptr ? lease->failed_before() : std::nullopt);
  if (!directory) return joined({before});
  std::string notes;
  if (Result<std::string> read = run::notes_in(*directory)) notes = *std::move(read);
  std::vector<std::string> parts = {before, directory->string(), notes};
  for (const Error& warning : restore_order->take_warnings()) {
    parts.push_back(std::string(warning.what()) + ": '" + directory->string() + "' takes its place");
  }
  return joined(parts);
}

Result<std::optional<fs::path>> ManagedRun::next_checkpoint(const std::optional<Error>& fault) {
  if (fault && !run::is_damage(*fault)) return *fault;
  Result<std::string> mine = std::string();
  if (impl_->ranks.is_coordinator()) mine = impl_->ranks.attempt([&] { return impl_->choose(fault); });
  CAIRN_TRY_ASSIGN(const std::string answer, impl_->ranks.broadcast(std::move(mine)));
  const std::vector<std::string> parts = parted(answer);
  if (parts.empty()) return Error(ErrorCode::kInternal, "rank 0 has sent no answer");
  impl_->failed = decode(parts[0]);
  if (parts.size() < 3) {
    impl_->has_resumed = true;
    impl_->note_failure();
    return std::optional<fs::path>();
  }
  impl_->chosen = parts[1];
  impl_->chosen_notes = parts[2];
  for (std::size_t i = 3; i < parts.size(); ++i) impl_->warn(Error(ErrorCode::kCorrupt, parts[i]));
  return std::optional(impl_->chosen);
}

// Rank 0 may learn late that a process of another host has died.
void ManagedRun::Impl::note_failure() {
  if (!failed && lease != nullptr) failed = lease->failed_before();
  if (failed && !std::exchange(has_noted_failure, true)) account.fail(*failed);
}

std::uint64_t ManagedRun::resumed() {
  impl_->restore_order.reset();
  impl_->last_due.reset();
  if (!std::exchange(impl_->has_resumed, true)) {  // a later restore goes back within this process
    impl_->account.resume(impl_->chosen_notes);
    impl_->note_failure();
  }
  return step_in_name(impl_->chosen).value_or(0);
}

Result<Due> ManagedRun::due(std::uint64_t step) {
  if (impl_->is_closed) return closed_error();
  if (impl_->last_due && impl_->last_due->first == step) return impl_->last_due->second;
  if (step > kStepInNameMax) {
    return Error(ErrorCode::kInvalidArgument, "no directory can have the name of this step")
        .expected("a step of at most " + std::to_string(kStepInNameMax))
        .actual(std::to_string(step));
  }
  // The step of the request comes later: until then the clock says the same again.
  if (impl_->ranks.is_coordinator() && !impl_->is_save_requested && impl_->clock.is_due()) {
    impl_->is_save_requested = true;
    impl_->agreement->request(run::kSaveRequest);
  }
  const std::uint64_t end = impl_->ends_of_steps + 1;
  const auto& every = impl_->options.schedule.every_steps;
  const bool is_due_by_steps = every && step % *every == 0;
  const Result<run::Requests> crossed = impl_->agreement->cross(end, impl_->options.interrupted);
  // The ranks meet in a save that is due by steps, which passes on a stop.
  const bool may_go_on = is_due_by_steps && !crossed && crossed.error().code() == ErrorCode::kUnavailable;
  if (!crossed) impl_->is_save_requested = false;
  if (!crossed && !may_go_on) return crossed.error();
  if (may_go_on) impl_->warn(crossed.error());
  const run::Requests requests = crossed ? *crossed : 0;
  impl_->ends_of_steps = end;
  if ((requests & run::kSaveRequest) != 0) impl_->is_save_requested = false;
  impl_->account.step(seconds_since_1970());
  Due due = (requests & run::kSaveRequest) != 0 || is_due_by_steps ? Due::kSave : Due::kNo;
  if ((requests & run::kStopRequest) != 0) {
    impl_->is_stop_unsaved = true;
    agreed_to_stop();
  }
  if (impl_->is_stop_unsaved) due = Due::kStop;
  impl_->last_due = {step, due};
  // What the ranks have agreed on comes first: the others go to that save.
  if (due == Due::kNo && (requests & run::kUnanswered) != 0) CAIRN_TRY(impl_->go_without_answer());
  return due;
}

// An error if no save is due by steps.
Result<void> ManagedRun::Impl::go_without_answer() {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(options.agreement_deadline).count();
  Error error(ErrorCode::kUnavailable,
              "the ranks have not agreed within " + std::to_string(seconds) +
                  " s on a stop, or on a save by the clock, that this rank has asked for: the store of the process "
                  "group does not answer");
  if (!options.schedule.every_steps) return error;
  if (!std::exchange(has_warned, true)) warn(std::move(error).while_doing("waiting for the next save by steps"));
  return {};
}

Result<void> ManagedRun::request_stop() {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->is_closed) return closed_error();
  if (impl_->ranks.size() > 1 && impl_->options.store == nullptr) {
    return Error(ErrorCode::kUnsupported, "the ranks can't agree on the step of a stop without a store");
  }
  impl_->is_stop_requested = true;
  impl_->agreement->request(run::kStopRequest);
  return {};
}

bool ManagedRun::is_stop_requested() const { return impl_->is_stop_requested; }

void ManagedRun::agreed_to_stop() {
  impl_->is_stopping = true;
  impl_->is_stop_requested = false;
}

bool ManagedRun::is_stopping() const { return impl_->is_stopping; }

Error ManagedRun::Impl::too_many_failures() {
  const std::uint32_t count = std::exchange(failures, 0);
  return std::move(*last_failure)
      .while_doing("saving the checkpoints of a run: " + std::to_string(count) +
                   " saves in a row have failed, this is the last");
}

Result<SaveStart> ManagedRun::begin(std::uint64_t step, const ManagedSave& save) {
  {
    const std::lock_guard lock(impl_->mutex);
    const bool is_last = impl_->is_stopping;  // no later save could still succeed
    const std::uint64_t failures_max = std::uint64_t{impl_->options.failures_in_a_row} + (save.is_forced ? 1 : 0);
    if (impl_->failures >= failures_max && !is_last) return impl_->too_many_failures();
  }
  if (impl_->lease != nullptr) CAIRN_TRY(impl_->lease->confirm());
  impl_->has_resumed = true;  // the account of this run goes on, also if a later restore goes back
  impl_->note_failure();
  const double now = seconds_since_1970();
  std::map<std::string, double> finite;
  for (const auto& [name, value] : save.metrics) {
    if (std::isfinite(value)) {
      finite.emplace(name, value);
    } else {
      impl_->warn(Error(ErrorCode::kInvalidArgument, "the metric '" + name + "' of step " + std::to_string(step) +
                                                         " is no finite number, and is left out"));
    }
  }
  Result<std::string> text = run::notes_of_save(save.notes, finite, impl_->account.text(now));
  if (!text && impl_->is_stopping) {  // no later save could do better
    impl_->warn(std::move(text).error().while_doing("storing the notes of the save of the stop, which are left out"));
    text = run::notes_of_save({}, finite, impl_->account.text(now));
  }
  if (!text) return std::move(text).error();
  impl_->is_stop_unsaved = false;
  impl_->has_begun = true;
  impl_->account.save_begins(now, save.waited.count());
  impl_->clock.save_begins();
  return SaveStart{directory_of(step), *std::move(text)};
}

// A save may end before its call returns. The costs of both are known after the later of the two.
void ManagedRun::began() {
  impl_->has_begun = false;
  impl_->account.save_returns(seconds_since_1970());
  impl_->learn();
}

void ManagedRun::dropped() {
  if (std::exchange(impl_->has_begun, false)) {
    impl_->account.save_drops(seconds_since_1970());
    impl_->clock.save_drops();
  }
  impl_->is_stop_unsaved = impl_->is_stopping;
}

void ManagedRun::ended(const std::optional<Error>& fault) {
  impl_->account.save_ends(!fault, seconds_since_1970());
  impl_->clock.save_ends();
  impl_->learn();
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->failures = fault ? impl_->failures + 1 : 0;
    impl_->last_failure = fault;
    if (!fault && impl_->removal != nullptr) impl_->removal->wake();
  }
  if (fault) impl_->warn(*fault);
}

Result<std::vector<std::uint64_t>> ManagedRun::steps() const {
  CAIRN_TRY_ASSIGN(const std::vector<run::ListedStep> listed, run::listed_steps(impl_->root));
  std::vector<std::uint64_t> steps;
  steps.reserve(listed.size());
  for (const run::ListedStep& entry : listed) steps.push_back(entry.step);
  std::sort(steps.begin(), steps.end());
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  return steps;
}

Result<std::optional<std::uint64_t>> ManagedRun::latest_step() const {
  CAIRN_TRY_ASSIGN(const std::vector<run::ListedStep> listed, run::listed_steps(impl_->root));
  return listed.empty() ? std::optional<std::uint64_t>() : listed.front().step;
}

Result<std::optional<std::uint64_t>> ManagedRun::best_step(const std::string& metric,
                                                           RetentionRule::Best::Order order) const {
  CAIRN_TRY_ASSIGN(const std::vector<run::ListedStep> listed, run::listed_steps(impl_->root));
  return run::best_of(listed, metric, order);
}

Result<std::map<std::string, double>> ManagedRun::metrics(std::uint64_t step) const {
  CAIRN_TRY_ASSIGN(const std::vector<run::ListedStep> listed, run::listed_steps(impl_->root));
  for (const run::ListedStep& entry : listed) {
    if (entry.step == step) return run::metrics_in(entry.directory);
  }
  return Error(ErrorCode::kNotFound, "no checkpoint of step " + std::to_string(step)).file(impl_->root.string());
}

fs::path ManagedRun::directory_of(std::uint64_t step) const {
  return impl_->root / name_of_step(impl_->options.name, step).value();  // open() has checked the name
}

ManagedRunReport ManagedRun::report() const {
  ManagedRunReport report = impl_->account.report(seconds_since_1970());
  report.interval = impl_->clock.automatic_interval();
  return report;
}

Result<void> ignore_stop_signals(const std::vector<int>& signals, int owner) {
  return os::take_only_from_parent(signals, owner);
}

Result<void> ManagedRun::close(bool has_failed) {
  if (impl_->is_of_a_fork()) return {};
  impl_->signals.reset();
  std::unique_ptr<run::StepAgreement> agreement;
  std::unique_ptr<run::BackgroundRemoval> removal;
  {
    const std::lock_guard lock(impl_->mutex);  // request_stop() and ended() are called by other threads
    if (std::exchange(impl_->is_closed, true)) return {};
    agreement = std::move(impl_->agreement);
    removal = std::move(impl_->removal);
  }
  agreement.reset();  // its thread reads the store, which may end before this object
  if (removal != nullptr) {
    removal->end(impl_->is_stopping || has_failed ? std::chrono::milliseconds(0) : kRemovalAtEndMax,
                 impl_->options.interrupted);
  }
  removal.reset();
  return impl_->lease != nullptr ? impl_->lease->end(has_failed) : Result<void>();
}

}  // namespace cairn

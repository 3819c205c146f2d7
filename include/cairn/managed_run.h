// CheckpointManager: the checkpoints of a run. Decides at which steps to save, saves in the background, removes the
// checkpoints that a rule does not keep, stops the run at a signal with a checkpoint, and resumes from the newest good
// checkpoint. ManagedRun: the decisions alone, for callers that save and load by functions of their own.
//
// The checkpoints are in directories below a root, a directory for each saved step. A root has one manager at a time.
// With collectives, every rank has an object, and all ranks make their calls in the same order, with equal steps. One
// thread at a time, except where a function says otherwise.
#pragma once

#include <cairn/async_checkpointer.h>
#include <cairn/checkpoint.h>
#include <cairn/result.h>
#include <cairn/retention.h>
#include <cairn/run_cost.h>
#include <cairn/state_dict.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace cairn {

class Collectives;  // cairn/collectives.h

// A store of small texts that all ranks of a run share, such as the key-value store of a process group. Two threads of
// a manager call it. Errors are of the transport (kUnavailable).
class RunStore {
 public:
  virtual ~RunStore() = default;
  virtual Result<void> set(const std::string& key, const std::string& value) = 0;
  // The values if all keys are set, else nullopt. Does not wait.
  virtual Result<std::optional<std::vector<std::string>>> get(const std::vector<std::string>& keys) = 0;
  // Removing a missing key is no error.
  virtual Result<void> remove(const std::string& key) = 0;
};

// A store for the threads of a process, for tests and for ranks that are threads.
std::shared_ptr<RunStore> make_local_store();

// When a save is due. All that are set count: a save is due if one of them says so.
struct SaveSchedule {
  std::optional<std::uint64_t> every_steps = {};  // at each step that is a multiple
  // By the clock of rank 0, from the start of one save to the start of the next. Of several ranks, rank 0 announces the
  // step as it announces a stop: this needs `store`.
  std::optional<std::chrono::milliseconds> every = {};
  // As `every`, at the interval of the least expected loss: save_interval() of the costs and failures so far.
  bool automatic = false;
  IntervalBounds bounds = {};                      // of the automatic interval
  double expected_between_failures = 24.0 * 3600;  // in seconds, before the first failure
};

struct ManagedRunOptions {
  SaveSchedule schedule = {};
  // The name of a step's directory, a format of the C++ standard: "step-{step}", "step_{step:08d}". The number must be
  // the step of the name (latest()).
  std::string name = "step-{step}";
  // Which checkpoints stay; nullopt: all. Rank 0 removes the others in a thread of low priority, after the next save
  // is durable on all ranks.
  std::optional<RetentionRule> keep = {};
  bool adopt = false;                   // as in PruneOptions
  std::uint32_t failures_in_a_row = 3;  // so many failed saves, one after the other, are an error of the next save
  // A restart waits so long for saves in flight of an earlier process of the run.
  std::chrono::milliseconds wait_for_saves = std::chrono::minutes(1);
  Collectives* collectives = nullptr;  // null: this process alone. Outlives the run
  // Of several ranks: the store by which the ranks agree on the step of a stop. Null: request_stop() of a rank is
  // refused if there are several ranks.
  std::shared_ptr<RunStore> store = {};
  // A rank that does not answer so long to an announced stop or save fails the next step of all ranks.
  std::chrono::milliseconds agreement_deadline = std::chrono::seconds(30);
  // Signals that stop the run (request_stop()). A second arrival of a signal takes the action that was in place before;
  // a handler that was in place before is called at the first arrival too, except for the signals of `uncalled_before`.
  std::vector<int> stop_signals = {};
  std::vector<int> uncalled_before = {};  // of `stop_signals`
  // Called in any thread: a checkpoint that a restart passes over, a failed save, a problem of a removal.
  std::function<void(const Error&)> warn = {};
  std::function<bool()> interrupted = {};  // called often by calls that wait; true: kCancelled
};

// What a run's saves have cost this rank, and the failures of the run, since its first start. In seconds. A
// checkpoint's notes carry the sums over a restart: a process that has died before its first durable save leaves none.
struct ManagedRunReport {
  // From the first start of the run to now. Without the time from the last save of a process that closed its manager to
  // the start of the next: a job may wait in a queue. With the time after a process that did not.
  double elapsed = 0;
  double calls = 0;          // the trainer waited in calls that save, and in them for the end of the save before
  double slower_steps = 0;   // steps beside a save took so much longer than the mean of the other steps
  double failed_saves = 0;   // part of `calls`: for saves that failed
  double restarts = 0;       // from the last sign of life of a failed process to the first step of the next
  double redone = 0;         // from a checkpoint to the failure: steps that were done again
  std::uint64_t saves = 0;   // that are durable
  std::uint64_t failed = 0;  // saves that failed
  // Restarts after a process that did not close its manager, or whose rank 0 closed it with `has_failed`. Of a process
  // on another host that did not close, rank 0 alone knows, from its first save on; the other ranks know at the next
  // restart.
  std::uint64_t failures = 0;
  double interval = 0;  // the automatic interval now; 0 without
  // The share of `elapsed` in which the run trained for good.
  double good_share() const;
};

enum class Due : std::uint8_t {
  kNo,
  kSave,
  kStop,  // a save is due, and the run should end when the save is durable
};

// What a caller says of a save.
struct ManagedSave {
  std::map<std::string, double> metrics = {};  // go into the checkpoint's notes
  std::string notes = {};                      // the members of a JSON object go there too
  // The save is not due: the caller wants it. Tried once more after failures in a row.
  bool is_forced = false;
  // The trainer has waited so long for the end of the save before.
  std::chrono::duration<double> waited = std::chrono::seconds(0);
};

// The place and the notes of a save that begins.
struct SaveStart {
  std::filesystem::path directory;
  std::string notes;  // for SaveOptions::notes
};

// The decisions of a manager. Steps of a caller:
//
// 1. open() on all ranks.
// 2. next_checkpoint() on all ranks, and a load; again with the error if the load fails because of damage. Then
//    resumed().
// 3. After each step of the training, due(). If a save is due or wanted: end the save before, begin(), save, began().
// 4. When the save has ended: ended(). A save that is not made after begin(): dropped().
class ManagedRun {
 public:
  // Makes `root` if it does not exist. kUnavailable if another living process manages the root. All ranks call
  // together.
  static Result<std::unique_ptr<ManagedRun>> open(const std::filesystem::path& root, ManagedRunOptions options);
  ~ManagedRun();  // as close(), without its error; does nothing in a child made by fork

  // The newest good checkpoint; with `fault`, the error of a failed load of the last result, the next older one.
  // Nullopt if the root holds no checkpoint. Damage alone leads to an older one, with a warning: kCorrupt, kNotFound
  // and kReplaced. Any other `fault` is returned. kCorrupt if there are checkpoints and none is good. All ranks call
  // together, with an error on all or on none.
  Result<std::optional<std::filesystem::path>> next_checkpoint(const std::optional<Error>& fault = std::nullopt);
  // The last result of next_checkpoint() has been loaded. Returns its step; 0 if its name holds no number. A run may go
  // back to a checkpoint at any time; only the first time counts in the report.
  std::uint64_t resumed();

  // Whether a save is due after `step`. Every rank calls due() after each step: the ranks wait here, and only here,
  // until all have heard of an announced stop. Without an announcement costs less than a microsecond. A second call
  // with an equal step has an equal result. kStop stays the result until a save begins. kUnavailable if a rank or the
  // store has not answered. Not at a step that is due by `every_steps`, and with these a stop that has no answer waits
  // for such a step: the ranks exchange it in the save.
  Result<Due> due(std::uint64_t step);
  // Stops the run: due() is kStop at one step on all ranks. From any thread of any rank, also when the caller learns
  // of the end of its time by another way than a signal. kUnsupported if there are several ranks and no store.
  Result<void> request_stop();
  // Whether due() has been kStop.
  bool is_stopping() const;
  // Whether request_stop() was called on this rank, also by a signal, and no stop has been agreed on since. From any
  // thread.
  bool is_stop_requested() const;
  // The ranks have agreed by other means to stop at this step, such as in the exchange before a save.
  void agreed_to_stop();

  // Begins a save of `step`. Fails if as many saves have failed in a row as the options say, and on rank 0 if another
  // process has taken over the root: the caller passes the error on to all ranks (abandon_save()).
  Result<SaveStart> begin(std::uint64_t step, const ManagedSave& save = {});
  // The call that saves has returned; the trainer goes on.
  void began();
  // No save is made, because a rank could not begin or has found no state to save: no failure of a save. Also on a rank
  // without begin().
  void dropped();
  // The save has ended, and is durable without an error. From any thread. A failed save is a warning.
  void ended(const std::optional<Error>& fault);

  // Of the root as it is now, whole checkpoints only; from any thread.
  Result<std::vector<std::uint64_t>> steps() const;  // ascending
  Result<std::optional<std::uint64_t>> latest_step() const;
  Result<std::optional<std::uint64_t>> best_step(const std::string& metric, RetentionRule::Best::Order order) const;
  Result<std::map<std::string, double>> metrics(std::uint64_t step) const;  // kNotFound without such a checkpoint

  std::filesystem::path directory_of(std::uint64_t step) const;
  ManagedRunReport report() const;  // from any thread
  // Leaves the root to the next manager. Waits up to 10 s for the removal under way; the next manager goes on with it.
  // A storage or a store that hangs holds the call 5 s each. `has_failed`: the process ends by a failure, which the
  // next process counts in the report. Does nothing in a child made by fork.
  Result<void> close(bool has_failed = false);

  struct Impl;  // the library's own
  explicit ManagedRun(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

// For a worker process of a rank, such as one that reads data: a launcher and a scheduler send the signals of a stop to
// all processes of a job, and a worker that they end fails the step of the rank. Afterwards the worker takes these
// signals from its parent process alone, and from the process `owner` if it is not 0. For the whole process, and for
// good. kInvalidArgument for a signal that can't be caught.
Result<void> ignore_stop_signals(const std::vector<int>& signals, int owner = 0);

struct CheckpointManagerOptions {
  ManagedRunOptions run = {};
  AsyncSaveOptions save = {};  // of its `save`: collectives, notes and overwrite_pinned are the manager's
  LoadOptions load = {};       // collectives are the manager's
  AsyncCheckpointerOptions checkpointer = {};  // `overlap` is the manager's
  bool writer_process = true;  // false: threads of this process write. Not used if `checkpointer.process` is set
  // The save of a stop returns after that time if it is not durable. A writer process goes on after that.
  std::chrono::milliseconds grace = std::chrono::seconds(25);
};

class CheckpointManager {
 public:
  static Result<CheckpointManager> open(const std::filesystem::path& root, CheckpointManagerOptions options = {});
  CheckpointManager(CheckpointManager&&) noexcept;
  CheckpointManager& operator=(CheckpointManager&&) noexcept;
  ~CheckpointManager();  // as close(), without its error; an exception that ends the scope is a failure of the process

  // Loads the newest good checkpoint into `state`, and returns its step; nullopt if the root holds no checkpoint.
  Result<std::optional<std::uint64_t>> restore(StateDict& state);
  // Called after each step, by every rank. Saves if a save is due, or with `force`; nullopt if not. A failure of the
  // save is in the write future, and is counted; `failures_in_a_row` of them are an error of the call, and so is a
  // failure that each later save would have too (kInvalidArgument, kUnsupported). With the save of a stop the call
  // returns when it is durable, or after the grace, with a warning.
  Result<std::optional<AsyncSave>> save(std::uint64_t step, const StateDict& state,
                                        const std::map<std::string, double>& metrics = {}, bool force = false);
  // Whether the run should end: save() has made the save of the stop, or has failed to.
  bool preempted() const;
  ManagedRun& run();
  // Waits for the save in flight, and returns its error.
  Result<void> wait();
  Result<void> close(bool has_failed = false);  // ManagedRun::close()

 private:
  struct Impl;
  explicit CheckpointManager(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn

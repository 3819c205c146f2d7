// RunAccount: what the saves and failures of a run have cost, over all of its processes. Part of the notes of each
// checkpoint carries the account over a restart: the member "run".
//
// Thread-safe. The caller gives all times, in seconds since 1970.
#pragma once

#include <cairn/managed_run.h>

#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "run/managing_lease.h"

namespace cairn::run {

class RunAccount {
 public:
  explicit RunAccount(double now) : started_(now), origin_(now) {}

  // Continues the account in the member "run" of `notes`, of the checkpoint that the run resumes from. Damaged notes,
  // and notes without the member, have no account. Without a fail(), no process ran from that checkpoint to the start
  // of this process: the time is no time of the run.
  void resume(std::string_view notes);
  // The process before has not closed its manager. Once, after resume(): it may be known late that a process of another
  // host is dead.
  void fail(const FailedProcess& process);
  // The trainer has ended a step.
  void step(double now);
  // The trainer has waited `waited` seconds for the save before.
  void save_begins(double now, double waited);
  void save_returns(double now);
  void save_ends(bool is_durable, double now);
  // The save that has begun is not made.
  void save_drops(double now);

  RunCosts costs() const;  // means of this process's saves, and of restarts
  ManagedRunReport report(double now) const;
  // The member's value, a JSON object.
  std::string text(double now) const;

 private:
  // Under the mutex.
  void add_restart(double last_sign);
  void add_call(double seconds);

  mutable std::mutex mutex_;
  double started_;          // this process
  double origin_;           // the run's first start
  double idle_ = 0;         // no process ran, after clean ends of earlier processes
  double idle_before_ = 0;  // and before this process
  ManagedRunReport sums_;
  std::optional<double> resumed_from_;  // when the save began that the run has resumed from
  std::optional<double> last_sign_;     // of the failed process, until the first step
  std::optional<double> first_step_;    // of this process
  std::optional<double> last_step_;
  std::optional<double> begun_;       // the save in flight
  std::optional<double> call_begun_;  // the call of the save in flight
  bool has_call_failed_ = false;      // the save has failed within its call
  double call_ = 0;                   // of the last save: the seconds that its call took
  double free_steps_ = 0;             // the sum of the seconds of steps without a save beside them
  double free_step_count_ = 0;
  double durable_ = 0;  // the sum over this process's durable saves, from begin to end
  double durable_count_ = 0;
  double calls_here_ = 0;
  double slower_here_ = 0;
  double calls_count_ = 0;
};

}  // namespace cairn::run

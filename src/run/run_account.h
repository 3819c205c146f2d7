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

namespace cairn::run {

class RunAccount {
 public:
  explicit RunAccount(double now) : started_(now), origin_(now) {}

  // Continues the account in the member "run" of `notes`, of the checkpoint that the run resumes from. The process
  // before gave its last sign of life at `last_sign`; nullopt: it has closed its manager. Damaged notes, and notes
  // without the member, have no account.
  void resume(std::string_view notes, std::optional<double> last_sign);
  // The trainer has ended a step.
  void step(double now);
  void save_begins(double now);
  void save_returns(double now);
  void save_ends(bool is_durable, double now);

  RunCosts costs() const;  // means of this process's saves, and of restarts
  ManagedRunReport report(double now) const;
  // The member's value, a JSON object.
  std::string text(double now) const;

 private:
  mutable std::mutex mutex_;
  double started_;  // this process
  double origin_;   // the run's first start
  ManagedRunReport sums_;
  std::optional<double> last_sign_;  // of the failed process, until the first step
  std::optional<double> last_step_;
  std::optional<double> begun_;  // the save in flight
  bool is_in_call_ = false;
  double call_ = 0;        // of the save in flight: the seconds that its call took
  double free_steps_ = 0;  // the sum of the seconds of steps without a save beside them
  double free_step_count_ = 0;
  double durable_ = 0;  // the sum over this process's durable saves, from begin to end
  double durable_count_ = 0;
  double calls_here_ = 0;
  double slower_here_ = 0;
  double calls_count_ = 0;
};

}  // namespace cairn::run

// Operation: makes the events of one save, load, verification or removal, and is the Work of the call (work.h).
//
// Without a listener at its begin, an Operation makes no event; without a ProgressWatch, its Work holds nothing.
// Thread-safe, except for the constructors, the assignment and the destructor. An operation that has begun has exactly
// one ending event: the destructor makes it kFailed, unless end() or fail() came first, or the process is a forked
// child.
#pragma once

#include <cairn/events.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "events/listeners.h"
#include "events/work.h"

namespace cairn::events {

// The time of a step that another thread or process has measured.
struct StepTime {
  std::chrono::system_clock::time_point started;
  std::chrono::nanoseconds duration{};
};

// The time of the system's clock when the library was loaded, plus the time of the steady clock since then: comparable
// between processes and hosts, and without steps within a process.
std::chrono::system_clock::time_point now();

// Measures a StepTime from the construction on.
class StepClock {
 public:
  StepTime read() const { return {started_, now() - started_}; }
  std::chrono::system_clock::time_point started() const { return started_; }

 private:
  std::chrono::system_clock::time_point started_ = now();
};

class Operation {
 public:
  Operation() = default;
  // Tells kBegun.
  static Operation begin(EventOperation kind, const OperationPlace& place, bool asynchronous = false) {
    Operation operation = is_heard() ? begin_heard(kind, place, asynchronous) : Operation();
    operation.work_ = Work::begin(work_of(kind), place, {Work::Unit::kBytes, asynchronous});
    return operation;
  }
  // Of a SaveClaim: is no Work, since the RankShare of the rank is one.
  static Operation of_claim(const OperationPlace& place) {
    return is_heard() ? begin_heard(EventOperation::kSave, place, false) : Operation();
  }
  // Of kRemove: tells no kBegun, and the destructor tells nothing.
  static Operation of_removal(std::string_view directory);

  Operation(Operation&&) noexcept = default;
  Operation& operator=(Operation&& other) noexcept;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  ~Operation() { drop(); }

  // The step that began with the end of the step before, or with the operation, has ended.
  void step(EventKind kind, std::uint64_t bytes = 0) {
    if (state_) tell_step(kind, bytes);
  }
  // A step that `process` has carried out beside other steps.
  void step_of(std::int64_t process, EventKind kind, const StepTime& time, std::uint64_t bytes);
  void end(EventKind kind, std::uint64_t bytes, const std::optional<Error>& cause = std::nullopt) {
    work_.end(true);
    if (state_) tell_end(kind, bytes, cause);
  }
  void fail(const Error& cause) {
    work_.end(false);
    if (state_) tell_end(EventKind::kFailed, 0, cause);
  }
  // Without a further event: this process does not learn how the operation ends.
  void leave() {
    work_.end(true);
    if (state_) leave_heard();
  }
  const Work& work() const { return work_; }
  bool is_told() const { return state_ != nullptr; }

 private:
  struct State;
  struct DeleteState {
    void operator()(State* state) const;
  };
  static WorkKind work_of(EventOperation kind);
  static Operation begin_heard(EventOperation kind, const OperationPlace& place, bool asynchronous);
  void tell_step(EventKind kind, std::uint64_t bytes);
  void tell_end(EventKind kind, std::uint64_t bytes, const std::optional<Error>& cause);
  void leave_heard();
  void drop() noexcept {
    if (state_) drop_heard();
  }
  void drop_heard() noexcept;

  std::unique_ptr<State, DeleteState> state_;  // null: there was no listener at the begin
  Work work_;
};

}  // namespace cairn::events

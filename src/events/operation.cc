#include "events/operation.h"

#include <unistd.h>

#include <atomic>
#include <exception>
#include <mutex>
#include <utility>

#include "core/step_in_name.h"

namespace cairn::events {
namespace {

std::atomic<std::uint64_t> last_id{0};

// Of "run/step-7/": "step-7".
std::string_view last_name(std::string_view directory) {
  while (directory.ends_with('/')) directory.remove_suffix(1);
  return directory.substr(directory.rfind('/') + 1);
}

struct Anchor {
  std::chrono::system_clock::time_point system = std::chrono::system_clock::now();
  std::chrono::steady_clock::time_point steady = std::chrono::steady_clock::now();
};
const Anchor anchor;

}  // namespace

std::chrono::system_clock::time_point now() {
  return anchor.system + std::chrono::duration_cast<std::chrono::system_clock::duration>(
                             std::chrono::steady_clock::now() - anchor.steady);
}

struct Operation::State {
  Event event;  // the common fields of the operation's events
  StepClock clock;
  bool has_begun = true;  // kBegun was told, so that an end must follow
  std::mutex mutex;
  std::chrono::nanoseconds last_end{};  // of the last step, since the begin
  bool is_ended = false;
};

void Operation::DeleteState::operator()(State* state) const { delete state; }

Operation& Operation::operator=(Operation&& other) noexcept {
  if (this != &other) {
    drop();
    state_ = std::move(other.state_);
    work_ = std::move(other.work_);
  }
  return *this;
}

Operation Operation::begin_heard(EventOperation kind, const OperationPlace& place, bool asynchronous) {
  Operation operation;
  operation.state_.reset(new State);
  Event& event = operation.state_->event;
  event.operation = kind;
  event.asynchronous = asynchronous;
  event.id = ++last_id;
  event.directory = place.directory;
  event.rank = place.rank;
  event.rank_count = place.rank_count;
  event.step = step_in_name(last_name(place.directory));
  event.process_id = getpid();
  event.started = operation.state_->clock.read().started;
  if (kind == EventOperation::kRemove) {
    operation.state_->has_begun = false;
  } else {
    tell(event);
  }
  return operation;
}

Operation Operation::of_removal(std::string_view directory) {
  Operation operation = is_heard() ? begin_heard(EventOperation::kRemove, {directory}, false) : Operation();
  operation.work_ = Work::begin(WorkKind::kRemove, directory, Work::Unit::kFiles);
  return operation;
}

WorkKind Operation::work_of(EventOperation kind) {
  switch (kind) {
    case EventOperation::kSave: return WorkKind::kSave;
    case EventOperation::kLoad: return WorkKind::kLoad;
    case EventOperation::kVerify: return WorkKind::kVerify;
    case EventOperation::kRemove: break;
  }
  return WorkKind::kRemove;
}

void Operation::tell_step(EventKind kind, std::uint64_t bytes) {
  Event event = state_->event;
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->is_ended) return;
    const StepTime time = state_->clock.read();
    event.started = time.started + std::chrono::duration_cast<std::chrono::system_clock::duration>(state_->last_end);
    event.duration = time.duration - state_->last_end;
    event.since_begun = time.duration;
    state_->last_end = time.duration;
  }
  event.kind = kind;
  event.bytes = bytes;
  tell(event);
}

void Operation::step_of(std::int64_t process, EventKind kind, const StepTime& time, std::uint64_t bytes) {
  if (!state_) return;
  Event event = state_->event;
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->is_ended) return;
    event.since_begun = state_->clock.read().duration;
    state_->last_end = event.since_begun;
  }
  event.kind = kind;
  event.bytes = bytes;
  event.started = time.started;
  event.duration = time.duration;
  event.process_id = process;
  tell(event);
}

void Operation::tell_end(EventKind kind, std::uint64_t bytes, const std::optional<Error>& cause) {
  Event event = state_->event;
  {
    const std::lock_guard lock(state_->mutex);
    if (std::exchange(state_->is_ended, true)) return;
    const StepTime time = state_->clock.read();
    event.started = time.started + std::chrono::duration_cast<std::chrono::system_clock::duration>(state_->last_end);
    event.duration = time.duration - state_->last_end;
    event.since_begun = time.duration;
  }
  event.kind = kind;
  event.bytes = bytes;
  event.cause = cause;
  tell(event);
}

void Operation::leave_heard() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->is_ended = true;
  }
  events::leave(state_->event.id);
}

void Operation::drop_heard() noexcept {
  if (state_->event.process_id != getpid()) {
    (void)state_.release();  // in a forked child: the parent's operation, with a lock that may be held for ever
    return;
  }
  try {
    if (state_->has_begun) {
      tell_end(EventKind::kFailed, 0, Error(ErrorCode::kCancelled, "the operation was given up"));
    }
  } catch (const std::exception&) {  // out of memory
  }
  state_.reset();
}

}  // namespace cairn::events

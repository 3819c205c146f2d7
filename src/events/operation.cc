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
  const Audience audience = Audience::now();
  const std::int64_t process_id = getpid();
  const StepClock clock{};
  bool has_begun = true;  // kBegun was told, so that an end must follow
  std::mutex mutex;
  std::chrono::nanoseconds last_end{};  // of the last step, since the begin
  bool is_ended = false;
  // Changes under the mutex, and not while it is told. Kept, because a copy would allocate memory for the directory.
  Event event;
  std::atomic<bool> is_told{false};

  // The step that ends now, after `last_end`.
  void end_step(Event& changed) const {
    const StepTime time = clock.read();
    changed.started = time.started + std::chrono::duration_cast<std::chrono::system_clock::duration>(last_end);
    changed.duration = time.duration - last_end;
    changed.since_begun = time.duration;
    changed.process_id = process_id;
  }

  // Tells the event with the changes by `change`, without the lock. Another thread, or a listener of this thread, may
  // be in a call for the event: then a copy is told.
  template <typename Change>
  void tell(std::unique_lock<std::mutex> lock, const Change& change) {
    const bool is_copied = is_told.exchange(true);
    std::optional<Event> copy;
    Event& told = is_copied ? copy.emplace(event) : event;
    change(told);
    last_end = told.since_begun;
    lock.unlock();
    audience.tell(told);
    if (!is_copied) is_told = false;
  }
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
  event.step = step_of_name(last_name(place.directory));
  event.process_id = operation.state_->process_id;
  event.started = operation.state_->clock.started();
  if (kind == EventOperation::kRemove) {
    operation.state_->has_begun = false;
  } else {
    operation.state_->audience.tell(event);
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
    case EventOperation::kConvert: return WorkKind::kConvert;
    case EventOperation::kRemove: break;
  }
  return WorkKind::kRemove;
}

void Operation::tell_step(EventKind kind, std::uint64_t bytes) {
  std::unique_lock lock(state_->mutex);
  if (state_->is_ended) return;
  state_->tell(std::move(lock), [&](Event& event) {
    state_->end_step(event);
    event.kind = kind;
    event.bytes = bytes;
  });
}

void Operation::step_of(std::int64_t process, EventKind kind, const StepTime& time, std::uint64_t bytes) {
  if (!state_) return;
  std::unique_lock lock(state_->mutex);
  if (state_->is_ended) return;
  state_->tell(std::move(lock), [&](Event& event) {
    event.kind = kind;
    event.bytes = bytes;
    event.started = time.started;
    event.duration = time.duration;
    event.since_begun = state_->clock.read().duration;
    event.process_id = process;
  });
}

void Operation::tell_end(EventKind kind, std::uint64_t bytes, const std::optional<Error>& cause) {
  std::unique_lock lock(state_->mutex);
  if (std::exchange(state_->is_ended, true)) return;
  state_->tell(std::move(lock), [&](Event& event) {
    state_->end_step(event);
    event.kind = kind;
    event.bytes = bytes;
    event.cause = cause;
  });
}

void Operation::leave_heard() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->is_ended = true;
  }
  state_->audience.leave(state_->event.id);
}

void Operation::drop_heard() noexcept {
  if (state_->process_id != getpid()) {
    (void)state_.release();  // in a forked child: the parent's operation, with a lock that may be held for ever
    return;
  }
  try {
    if (state_->has_begun && !state_->is_ended) {
      tell_end(EventKind::kFailed, 0, Error(ErrorCode::kCancelled, "the operation was given up"));
    }
  } catch (const std::exception&) {  // out of memory
  }
  state_.reset();
}

}  // namespace cairn::events

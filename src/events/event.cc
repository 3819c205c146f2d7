#include <cairn/events.h>

#include <algorithm>
#include <utility>

namespace cairn {

std::string_view name_of(EventKind kind) {
  switch (kind) {
    case EventKind::kBegun: return "begun";
    case EventKind::kPlanned: return "planned";
    case EventKind::kStaged: return "staged";
    case EventKind::kWritten: return "written";
    case EventKind::kCommitted: return "committed";
    case EventKind::kFailed: return "failed";
    case EventKind::kDeleted: return "deleted";
    case EventKind::kLoaded: return "loaded";
    case EventKind::kVerified: break;
  }
  return "verified";
}

std::string_view name_of(EventOperation operation) {
  switch (operation) {
    case EventOperation::kSave: return "save";
    case EventOperation::kLoad: return "load";
    case EventOperation::kVerify: return "verify";
    case EventOperation::kRemove: return "remove";
    case EventOperation::kConvert: break;
  }
  return "convert";
}

EventQueue::EventQueue(std::size_t capacity, std::vector<EventKind> kinds)
    : capacity_(capacity),
      kinds_(std::move(kinds)),
      subscription_(subscribe([this](const Event& event) { add(event); })) {}

void EventQueue::add(const Event& event) {
  if (!kinds_.empty() && std::find(kinds_.begin(), kinds_.end(), event.kind) == kinds_.end()) return;
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  if (events_.size() >= capacity_) {
    ++dropped_;
    return;
  }
  events_.push_back(event);
  changed_.notify_all();
}

std::vector<Event> EventQueue::take(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, time, [this] { return closed_ || !events_.empty(); });
  std::vector<Event> taken{events_.begin(), events_.end()};
  events_.clear();
  return taken;
}

void EventQueue::close() {
  subscription_.end();
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

bool EventQueue::is_closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

std::uint64_t EventQueue::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

}  // namespace cairn

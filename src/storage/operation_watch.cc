#include "storage/operation_watch.h"

#include <algorithm>

namespace cairn::storage {
namespace {

constexpr std::chrono::milliseconds kIntervalMax{2000};

}  // namespace

std::chrono::milliseconds limit_of(OperationKind kind, const SaveDeadlines& deadlines) {
  switch (kind) {
    case OperationKind::kSync: return deadlines.sync;
    case OperationKind::kNames: return deadlines.publish;
    case OperationKind::kWrite:
    case OperationKind::kHeartbeat: break;
  }
  return deadlines.progress;
}

Error stall(const PendingOperation& pending, const SaveDeadlines& deadlines) {
  return Error(ErrorCode::kUnavailable, "the storage hangs: " + pending.what + " has not returned")
      .expected("an answer within " + std::to_string(limit_of(pending.kind, deadlines).count()) + " ms")
      .actual("none after " + std::to_string(pending.age.count()) + " ms");
}

OperationWatch::Call::Call(OperationWatch& watch, OperationKind kind, std::string_view action, std::string_view name)
    : watch_(watch) {
  std::string what(action);
  if (!name.empty()) what += " '" + std::string(name) + "'";
  const std::lock_guard lock(watch_.mutex_);
  call_ = watch_.calls_.insert(watch_.calls_.end(), {kind, std::move(what), {}});
}

OperationWatch::Call::~Call() {
  const std::lock_guard lock(watch_.mutex_);
  watch_.calls_.erase(call_);
}

void OperationWatch::tick(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  if (!last_tick_) last_tick_ = now;
  const auto interval = std::chrono::duration_cast<std::chrono::milliseconds>(now - *last_tick_);
  *last_tick_ += interval;  // the remainder below a millisecond counts in the next tick
  for (PendingOperation& call : calls_) {
    if (ages(call.kind)) call.age += std::min(interval, kIntervalMax);
  }
}

std::optional<PendingOperation> OperationWatch::oldest() const {
  const std::lock_guard lock(mutex_);
  const PendingOperation* oldest = nullptr;
  for (const PendingOperation& call : calls_) {
    if (ages(call.kind) && (oldest == nullptr || call.age > oldest->age)) oldest = &call;
  }
  return oldest != nullptr ? std::optional(*oldest) : std::nullopt;
}

std::optional<PendingOperation> OperationWatch::overdue(const SaveDeadlines& deadlines) const {
  const std::lock_guard lock(mutex_);
  for (const PendingOperation& call : calls_) {
    if (ages(call.kind) && call.age > limit_of(call.kind, deadlines)) return call;
  }
  return std::nullopt;
}

bool OperationWatch::is_syncing() const {
  const std::lock_guard lock(mutex_);
  return has(OperationKind::kSync);
}

bool OperationWatch::ages(OperationKind kind) const {
  if (kind == OperationKind::kSync) return true;
  if (has(OperationKind::kSync)) return false;
  if (kind != OperationKind::kHeartbeat) return true;
  return !has(OperationKind::kWrite) && !has(OperationKind::kNames);
}

bool OperationWatch::has(OperationKind kind) const {
  return std::any_of(calls_.begin(), calls_.end(), [kind](const PendingOperation& call) { return call.kind == kind; });
}

}  // namespace cairn::storage

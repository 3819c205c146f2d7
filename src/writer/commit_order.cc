#include "writer/commit_order.h"

#include <algorithm>
#include <utility>

#include "os/real_path.h"

namespace cairn::writer {
namespace {

constexpr std::chrono::milliseconds kPollInterval{20};

}  // namespace

CommitOrder::Turn::Turn(std::shared_ptr<Directories> directories, std::string directory)
    : directories_(std::move(directories)), directory_(std::move(directory)) {
  const std::lock_guard lock(directories_->mutex);
  number_ = directories_->next++;
  directories_->in_flight[directory_].emplace(number_, false);
}

CommitOrder::Turn::~Turn() { leave(); }

void CommitOrder::Turn::leave() {
  const std::lock_guard lock(directories_->mutex);
  const auto found = directories_->in_flight.find(directory_);
  if (found == directories_->in_flight.end() || found->second.erase(number_) == 0) return;
  if (found->second.empty()) directories_->in_flight.erase(found);
  directories_->changed.notify_all();
}

void CommitOrder::Turn::note_stuck() {
  const std::lock_guard lock(directories_->mutex);
  directories_->in_flight[directory_][number_] = true;
  directories_->changed.notify_all();
}

Result<void> CommitOrder::Turn::wait(const std::function<bool()>& interrupted) const {
  std::unique_lock lock(directories_->mutex);
  for (;;) {
    const auto found = directories_->in_flight.find(directory_);
    if (found == directories_->in_flight.end() || found->second.begin()->first >= number_) return {};
    if (found->second.begin()->second) {
      return Error(ErrorCode::kUnavailable,
                   "an earlier save into this directory hangs in its commit and may still commit");
    }
    directories_->changed.wait_for(lock, kPollInterval);
    lock.unlock();  // the caller's function may take time, and take locks
    const bool stop_now = interrupted && interrupted();
    lock.lock();
    if (stop_now) return {};
  }
}

std::shared_ptr<CommitOrder::Turn> CommitOrder::enter(const std::string& directory, std::chrono::milliseconds limit) {
  return std::make_shared<Turn>(directories_, os::real_path(directory, limit));
}

}  // namespace cairn::writer

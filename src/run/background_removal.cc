#include "run/background_removal.h"

#include <utility>

#include "os/priority.h"
#include "os/start_thread.h"
#include "run/pruning.h"
#include "run/retention.h"
#include "run/run_root.h"

namespace cairn::run {
namespace {

using std::chrono::milliseconds;

constexpr int kNiceness = 19;
constexpr milliseconds kPoll{20};

}  // namespace

BackgroundRemoval::BackgroundRemoval(std::filesystem::path root, std::optional<PruneOptions> rule, ManagingLease& lease,
                                     Warn warn)
    : root_(std::move(root)), rule_(std::move(rule)), lease_(lease), warn_(std::move(warn)) {}

Result<std::unique_ptr<BackgroundRemoval>> BackgroundRemoval::start(const std::filesystem::path& root,
                                                                    const std::optional<PruneOptions>& rule,
                                                                    ManagingLease& lease, Warn warn) {
  if (rule) CAIRN_TRY(check(rule->rule));
  std::unique_ptr<BackgroundRemoval> removal(new BackgroundRemoval(root, rule, lease, std::move(warn)));
  BackgroundRemoval& self = *removal;
  CAIRN_TRY_ASSIGN(self.thread_,
                   os::start_thread<std::jthread>("to remove checkpoints",
                                                  [&self](const std::stop_token& stop) { self.run(stop); }));
  return removal;
}

BackgroundRemoval::~BackgroundRemoval() { end(milliseconds(0)); }

void BackgroundRemoval::wake() {
  const std::lock_guard lock(mutex_);
  is_wanted_ = true;
  changed_.notify_all();
}

void BackgroundRemoval::end(milliseconds finish, const std::function<bool()>& interrupted) {
  const auto until = std::chrono::steady_clock::now() + finish;
  std::unique_lock lock(mutex_);
  const auto has_finished = [this] { return !is_wanted_ && !is_running_; };
  while (std::chrono::steady_clock::now() < until && !changed_.wait_for(lock, kPoll, has_finished)) {
    lock.unlock();
    if (interrupted && interrupted()) break;
    lock.lock();
  }
  if (lock) lock.unlock();
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
}

void BackgroundRemoval::run(const std::stop_token& stop) {
  os::set_priority({.nice = kNiceness, .io_class = os::IoClass::kIdle});
  finish_interrupted(stop);
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [this] { return is_wanted_; }) && !stop.stop_requested()) {
    is_wanted_ = false;
    is_running_ = true;
    lock.unlock();
    apply(stop);
    lock.lock();
    is_running_ = false;
    changed_.notify_all();
  }
}

// Any process may finish a removal: its checkpoint is none any more.
void BackgroundRemoval::finish_interrupted(const std::stop_token& stop) {
  report(finish_removals(*run_root(root_), [&stop] { return stop.stop_requested(); }));
}

void BackgroundRemoval::apply(const std::stop_token& stop) {
  if (!rule_) return;
  const Result<bool> mine = lease_.is_mine();
  if (!mine) return report(mine.error());
  if (!*mine) return;  // the next save says so
  PruneOptions options = *rule_;
  options.interrupted = [&stop] { return stop.stop_requested(); };
  report(prune(root_, options));
}

void BackgroundRemoval::report(const Result<PruneReport>& report) const {
  if (!warn_) return;
  if (!report && report.error().code() != ErrorCode::kCancelled) warn_(report.error());
  if (!report) return;
  for (const Error& problem : report->problems) warn_(problem);
}

}  // namespace cairn::run

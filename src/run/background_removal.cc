#include "run/background_removal.h"

#include <condition_variable>
#include <mutex>
#include <stop_token>
#include <thread>
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
constexpr milliseconds kHangMax{5000};

}  // namespace

// What the owner and the thread share.
class BackgroundRemoval::Work {
 public:
  Work(std::filesystem::path root, std::optional<PruneOptions> rule, std::shared_ptr<ManagingLease> lease, Warn warn)
      : root_(std::move(root)), rule_(std::move(rule)), lease_(std::move(lease)), warn_(std::move(warn)) {}

  void run();
  void wake();
  void end(milliseconds finish, const std::function<bool()>& interrupted);

 private:
  void apply();
  void finish_interrupted();
  void report(const Result<PruneReport>& report);
  void warn(const Error& error);

  const std::filesystem::path root_;
  const std::optional<PruneOptions> rule_;
  const std::shared_ptr<ManagingLease> lease_;
  const Warn warn_;
  std::stop_source stop_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  bool is_wanted_ = false;
  bool is_running_ = false;
  bool has_ended_ = false;
  bool is_left_ = false;     // what `warn_` uses may be gone
  bool is_warning_ = false;  // within `warn_`
};

BackgroundRemoval::BackgroundRemoval(std::shared_ptr<Work> work) : work_(std::move(work)) {}

Result<std::unique_ptr<BackgroundRemoval>> BackgroundRemoval::start(const std::filesystem::path& root,
                                                                    const std::optional<PruneOptions>& rule,
                                                                    std::shared_ptr<ManagingLease> lease, Warn warn) {
  if (rule) CAIRN_TRY(check(rule->rule));
  auto work = std::make_shared<Work>(root, rule, std::move(lease), std::move(warn));
  CAIRN_TRY_ASSIGN(std::thread thread, os::start_thread<std::thread>("to remove checkpoints", [work] { work->run(); }));
  thread.detach();
  return std::unique_ptr<BackgroundRemoval>(new BackgroundRemoval(std::move(work)));
}

BackgroundRemoval::~BackgroundRemoval() { end(milliseconds(0)); }

void BackgroundRemoval::wake() { work_->wake(); }

void BackgroundRemoval::end(milliseconds finish, const std::function<bool()>& interrupted) {
  work_->end(finish, interrupted);
}

void BackgroundRemoval::Work::wake() {
  const std::lock_guard lock(mutex_);
  is_wanted_ = true;
  changed_.notify_all();
}

void BackgroundRemoval::Work::end(milliseconds finish, const std::function<bool()>& interrupted) {
  const auto until = std::chrono::steady_clock::now() + finish;
  std::unique_lock lock(mutex_);
  if (is_left_) return;
  const auto has_finished = [this] { return has_ended_ || (!is_wanted_ && !is_running_); };
  while (std::chrono::steady_clock::now() < until && !changed_.wait_for(lock, kPoll, has_finished)) {
    lock.unlock();
    const bool is_interrupted = interrupted && interrupted();
    lock.lock();
    if (is_interrupted) break;
  }
  stop_.request_stop();
  is_left_ = !changed_.wait_for(lock, kHangMax, [this] { return has_ended_; });
  changed_.wait(lock, [this] { return !is_warning_; });
}

void BackgroundRemoval::Work::run() {
  os::set_priority({.nice = kNiceness, .io_class = os::IoClass::kIdle});
  finish_interrupted();
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop_.get_token(), [this] { return is_wanted_; }) && !stop_.stop_requested()) {
    is_wanted_ = false;
    is_running_ = true;
    lock.unlock();
    apply();
    lock.lock();
    is_running_ = false;
    changed_.notify_all();
  }
  has_ended_ = true;
  changed_.notify_all();
}

// Any process may finish a removal: its checkpoint is none any more.
void BackgroundRemoval::Work::finish_interrupted() {
  report(finish_removals(*run_root(root_), [this] { return stop_.stop_requested(); }));
}

void BackgroundRemoval::Work::apply() {
  if (!rule_) return;
  const Result<bool> mine = lease_->is_mine();
  if (!mine) return report(mine.error());
  if (!*mine) return;  // the next save says so
  PruneOptions options = *rule_;
  options.interrupted = [this] { return stop_.stop_requested(); };
  report(prune(root_, options));
}

void BackgroundRemoval::Work::report(const Result<PruneReport>& report) {
  if (!report && report.error().code() != ErrorCode::kCancelled) warn(report.error());
  if (!report) return;
  for (const Error& problem : report->problems) warn(problem);
}

void BackgroundRemoval::Work::warn(const Error& error) {
  std::unique_lock lock(mutex_);
  if (!warn_ || is_left_) return;
  is_warning_ = true;
  lock.unlock();
  warn_(error);
  lock.lock();
  is_warning_ = false;
  changed_.notify_all();
}

}  // namespace cairn::run

// The locks: the list of open watches, a watch, and the function of an entry. No thread holds two of them, and no
// caller's function is called under one.
#include "events/work.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <optional>
#include <unordered_set>
#include <vector>

#include "os/process_state.h"

namespace cairn {
namespace events {
namespace {

constexpr std::size_t kWorksMax = 1000;

std::atomic<std::uint64_t> last_work{0};

// Of a work; shared by the Work and the watches that list the work.
class WorkEntry {
 public:
  explicit WorkEntry(WorkInProgress work) : work_(std::move(work)) {}

  const std::shared_ptr<WorkCount>& count() const { return count_; }

  void keep(std::function<void(WorkCount&)> read) {
    const std::lock_guard lock(mutex_);
    read_ = std::move(read);
  }

  // False after the first call.
  bool end(bool has_succeeded) {
    const std::lock_guard lock(mutex_);
    if (end_) return false;
    end_ = std::chrono::steady_clock::now();
    has_ended_ = true;
    work_.state = has_succeeded ? WorkInProgress::State::kSucceeded : WorkInProgress::State::kFailed;
    return true;
  }

  bool has_ended() const { return has_ended_; }

  WorkInProgress look() {
    std::function<void(WorkCount&)> read;
    WorkInProgress seen;
    {
      const std::lock_guard lock(mutex_);
      read = read_;
      seen = work_;
      seen.elapsed = end_.value_or(std::chrono::steady_clock::now()) - start_;
    }
    if (read) read(*count_);
    seen.total = count_->total.load(std::memory_order_relaxed);
    seen.done = count_->done.load(std::memory_order_relaxed);
    // A read may be smaller than planned: parts that are in memory, or that need no check, are not read.
    const bool has_succeeded = seen.state == WorkInProgress::State::kSucceeded;
    if (seen.total != 0) seen.done = has_succeeded ? seen.total : std::min(seen.done, seen.total);
    return seen;
  }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  const std::shared_ptr<WorkCount> count_ = std::make_shared<WorkCount>();  // shared with the threads that count
  std::mutex mutex_;
  WorkInProgress work_;  // without the counts
  std::optional<std::chrono::steady_clock::time_point> end_;
  std::atomic<bool> has_ended_{false};
  std::function<void(WorkCount&)> read_;
};

}  // namespace
}  // namespace events

struct ProgressWatch::Impl {
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::shared_ptr<events::WorkEntry>> works;  // shared with the Works
  std::uint64_t changes = 0;                              // begins, ends, and close()
  std::uint64_t seen = 0;                                 // the changes at the last take()
  bool closed = false;

  void add(const std::shared_ptr<events::WorkEntry>& work) {
    const std::lock_guard lock(mutex);
    if (works.size() == events::kWorksMax) drop_ended();
    if (works.size() < events::kWorksMax) works.push_back(work);
    note_change();
  }
  void drop_ended() {
    std::erase_if(works, [](const auto& work) { return work->has_ended(); });
  }
  void note_change() {
    ++changes;
    changed.notify_all();
  }
};

namespace events {
namespace {

using Watches = std::vector<std::shared_ptr<ProgressWatch::Impl>>;  // shared with the ProgressWatches

struct OpenWatches {
  std::unique_ptr<Watches> open = std::make_unique<Watches>();

  // A thread of the parent may hold a lock of a watch for ever: the child uses no watch of the parent.
  void in_child() {
    (void)open.release();
    open = std::make_unique<Watches>();
    is_watched = false;
  }
};

os::ProcessState<OpenWatches>& watches = os::ProcessState<OpenWatches>::instance();

}  // namespace

std::atomic<bool> is_watched{false};

struct Work::Listed {
  const pid_t process = getpid();
  const std::shared_ptr<WorkEntry> entry;
  const Watches told;
};

void Work::DeleteListed::operator()(Listed* listed) const { delete listed; }

Work& Work::operator=(Work&& other) noexcept {
  if (this != &other) {
    if (listed_) drop();
    listed_ = std::move(other.listed_);
  }
  return *this;
}

Work Work::list(WorkKind kind, const OperationPlace& place, Form form) {
  WorkInProgress work;
  work.id = ++last_work;
  work.kind = kind;
  work.unit = form.unit;
  work.asynchronous = form.asynchronous;
  work.directory = place.directory;
  work.rank = place.rank;
  work.rank_count = place.rank_count;
  Watches told = watches.use([](const OpenWatches& all) { return *all.open; });
  if (told.empty()) return {};
  const auto entry = std::make_shared<WorkEntry>(std::move(work));
  for (const auto& watch : told) watch->add(entry);
  Work listed;
  listed.listed_.reset(new Listed{getpid(), entry, std::move(told)});
  return listed;
}

std::shared_ptr<WorkCount> Work::shared_count() const { return listed_->entry->count(); }

void Work::store(std::uint64_t done, std::uint64_t total) const {
  WorkCount& count = *listed_->entry->count();
  count.total.store(total, std::memory_order_relaxed);
  count.done.store(done, std::memory_order_relaxed);
}

Work::Setter Work::setter(Setter also) const {
  if (!listed_) return also;
  return [this, also = std::move(also)](std::uint64_t done, std::uint64_t total) {
    store(done, total);
    if (also) also(done, total);
  };
}

void Work::keep(std::function<void(WorkCount&)> read) const { listed_->entry->keep(std::move(read)); }

void Work::note_end(bool has_succeeded) const {
  if (listed_->process != getpid() || !listed_->entry->end(has_succeeded)) return;
  for (const auto& watch : listed_->told) {
    const std::lock_guard lock(watch->mutex);
    watch->note_change();
  }
}

void Work::drop() noexcept {
  if (listed_->process != getpid()) {
    (void)listed_.release();
    return;
  }
  note_end(false);
  listed_.reset();
}

}  // namespace events

ProgressWatch::ProgressWatch() : impl_(std::make_shared<Impl>()) {
  events::watches.use([this](events::OpenWatches& all) {
    all.open->push_back(impl_);
    events::is_watched = true;
  });
}

ProgressWatch::~ProgressWatch() { close(); }

std::vector<WorkInProgress> ProgressWatch::take(std::chrono::milliseconds time) {
  std::vector<std::shared_ptr<events::WorkEntry>> works;
  {
    std::unique_lock lock(impl_->mutex);
    impl_->changed.wait_for(lock, time, [this] { return impl_->changes != impl_->seen; });
    impl_->seen = impl_->changes;
    works = impl_->works;
  }
  std::vector<WorkInProgress> result;
  result.reserve(works.size());
  for (const auto& work : works) result.push_back(work->look());
  std::unordered_set<const events::WorkEntry*> ended;
  for (std::size_t i = 0; i < works.size(); ++i) {
    if (result[i].state != WorkInProgress::State::kRunning) ended.insert(works[i].get());
  }
  if (ended.empty()) return result;
  const std::lock_guard lock(impl_->mutex);
  std::erase_if(impl_->works, [&ended](const auto& work) { return ended.contains(work.get()); });
  return result;
}

void ProgressWatch::close() {
  events::watches.use([this](events::OpenWatches& all) {
    std::erase(*all.open, impl_);
    events::is_watched = !all.open->empty();
  });
  const std::lock_guard lock(impl_->mutex);
  impl_->closed = true;
  impl_->note_change();
}

bool ProgressWatch::is_closed() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->closed;
}

std::string_view name_of(WorkKind kind) {
  constexpr std::array<std::string_view, 14> kNames{"saving",    "loading",   "verifying",  "removing",  "pruning",
                                                    "cleaning",  "repairing", "converting", "comparing", "reading",
                                                    "exporting", "merging",   "examining",  "measuring"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string_view name_of(WorkInProgress::Unit unit) {
  constexpr std::array<std::string_view, 3> kNames{"bytes", "files", "directories"};
  return kNames[static_cast<std::size_t>(unit)];
}

}  // namespace cairn

// 1. Under the lock of the root: without a file, create it. With the file of a dead process of this host, note its last
//    heartbeat, remove it and create a new one.
// 2. The file of a living process of this host: kUnavailable.
// 3. The file of another host, or one that can't be read: a thread looks at the file's heartbeats for 20 s. With a
//    heartbeat the other process lives: kUnavailable. Without, step 1 follows, if the file still has the same text.
// 4. The file of a process that has failed in order (end(true)) is the file of a dead process, also of another
//    host.
// 5. Before each save and each removal the process reads the file. A process that was stopped for long, and whose lease
//    another process has taken over by step 3, sees the other's text and manages no longer. Before a save, a file that
//    can't be read, or can't be read soon, changes nothing: the save finds the same storage, with its own deadlines.
#include "run/managing_lease.h"

#include <chrono>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include "commit/lease_watch.h"
#include "os/process_identity.h"
#include "os/start_thread.h"
#include "storage/open_directory.h"
#include "storage/staleness.h"

namespace cairn::run {
namespace {

constexpr const char* kManagerName = ".cairn-manager";
constexpr std::uint64_t kTextBytesMax = 64 * 1024;
constexpr std::chrono::milliseconds kPause{200};
constexpr std::chrono::seconds kSilence{20};
constexpr std::chrono::seconds kLookMax{5};

commit::SaveIdentity new_identity() {
  const os::Random128 id = os::random_128();
  commit::SaveIdentity identity;
  identity.save_id = {id.high, id.low};
  identity.job_id = identity.save_id;
  return identity;
}

Error managed_by(const std::optional<commit::LeaseHolder>& holder) {
  const std::string other =
      holder ? "host " + holder->process.host + ", pid " + std::to_string(holder->process.pid) : "another process";
  return Error(ErrorCode::kUnavailable, "another CheckpointManager manages this directory (" + other +
                                            "): close it, or end its process, or use another directory. In a copy of "
                                            "a managed directory, remove the file")
      .file(kManagerName);
}

Error lease_is_gone() {
  return Error(ErrorCode::kUnavailable,
               "this CheckpointManager manages the directory no longer: its lease, or the directory, was removed or "
               "replaced; make a new CheckpointManager")
      .file(kManagerName);
}

// The result of `work` in a thread of its own, which is left behind if the storage hangs: `work` keeps what it uses.
template <typename Work>
Result<std::future<std::invoke_result_t<Work&>>> in_own_thread(const char* purpose, Work work) {
  std::packaged_task<std::invoke_result_t<Work&>()> task(std::move(work));
  auto result = task.get_future();
  CAIRN_TRY_ASSIGN(std::thread thread,
                   os::start_thread<std::thread>(purpose, [task = std::move(task)]() mutable { task(); }));
  thread.detach();
  return result;
}

Error no_answer() { return Error(ErrorCode::kUnavailable, "the storage does not answer").file(kManagerName); }

// Nullopt if there is no file. The file of a process that died while it created the file is empty.
Result<std::optional<std::string>> text_in_place(const storage::Storage& storage) {
  Result<std::string> text = storage::read_small(storage, kManagerName, kTextBytesMax);
  if (text) return std::optional(*std::move(text));
  if (storage::is_absent(text.error())) return std::optional<std::string>();
  return std::move(text).error();
}

}  // namespace

ManagingLease::ManagingLease(std::unique_ptr<storage::Storage> storage)
    : storage_(std::move(storage)), identity_(new_identity()) {}

Result<std::shared_ptr<ManagingLease>> ManagingLease::take(const std::filesystem::path& root) {
  CAIRN_TRY_ASSIGN(std::unique_ptr<storage::Storage> storage, storage::make_directory(root));
  std::shared_ptr<ManagingLease> lease(new ManagingLease(std::move(storage)));
  ManagingLease& self = *lease;
  CAIRN_TRY_ASSIGN(const bool is_taken, self.try_to_take(std::nullopt));
  if (is_taken) return lease;
  CAIRN_TRY_ASSIGN(self.outlasting_,
                   in_own_thread("to look for another manager", [lease] { return lease->outlast(); }));
  return lease;
}

// (1), (2), (4). `dead`: a text whose process is known to be gone. False: a process of another host may hold the lease.
Result<bool> ManagingLease::try_to_take(const std::optional<std::string>& dead) {
  CAIRN_TRY_ASSIGN(const std::unique_ptr<storage::StorageLock> lock, storage_->lock());
  CAIRN_TRY_ASSIGN(const std::optional<std::string> text, text_in_place(*storage_));
  if (text) {
    CAIRN_TRY_ASSIGN(const auto holder, commit::read_lease(*storage_, kManagerName));
    auto state = holder ? holder->process.state() : os::ProcessIdentity::State::kElsewhere;
    if (holder && holder->has_failed) state = os::ProcessIdentity::State::kDead;  // (4)
    if (state == os::ProcessIdentity::State::kAlive) return managed_by(holder);
    if (state == os::ProcessIdentity::State::kElsewhere && text != dead) return false;
    CAIRN_TRY_ASSIGN(const double last_sign, storage_->touched_at(kManagerName));
    CAIRN_TRY(storage_->remove(kManagerName));
    const std::lock_guard guard(mutex_);
    failed_ = FailedProcess{holder ? static_cast<double>(holder->since) : 0, last_sign};
  }
  CAIRN_TRY_ASSIGN(lease_, commit::Lease::take_file(*storage_, identity_, kManagerName));
  return true;
}

// (3)
Result<void> ManagingLease::outlast() {
  CAIRN_TRY_ASSIGN(const std::optional<std::string> text, text_in_place(*storage_));
  commit::LeaseWatch watch(*storage_, kManagerName);
  const SaveDeadlines deadlines{.progress = kSilence};
  bool is_first = true;
  while (!outlasting_ends_.stop_requested()) {
    const commit::LeaseWatch::Liveness liveness = watch.look(deadlines);
    if (!is_first && watch.was_touched()) break;
    is_first = false;
    if (liveness != commit::LeaseWatch::Liveness::kAlive) {
      CAIRN_TRY_ASSIGN(const bool is_taken, try_to_take(text));
      if (is_taken) return {};
      break;  // a third process was faster
    }
    std::this_thread::sleep_for(kPause);
  }
  const auto holder = commit::read_lease(*storage_, kManagerName);
  return managed_by(holder ? *holder : std::nullopt);
}

Result<void> ManagingLease::confirm() {
  if (outlasting_.valid()) {
    if (outlasting_.wait_for(kSilence + 2 * kLookMax) != std::future_status::ready) return no_answer();
    CAIRN_TRY(outlasting_.get());
  }
  if (!lease_) return managed_by(std::nullopt);
  const Result<bool> mine = is_mine_soon();  // (5)
  if (!mine || *mine) return {};
  const auto holder = commit::read_lease(*storage_, kManagerName);
  if (!holder && storage::is_absent(holder.error())) return lease_is_gone();
  return managed_by(holder ? *holder : std::nullopt);
}

// By a thread, because a storage that hangs would hold the trainer.
Result<bool> ManagingLease::is_mine_soon() {
  if (looking_.valid() && looking_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return no_answer();
  auto looking = in_own_thread("to look at the lease", [self = shared_from_this()] { return self->is_mine(); });
  if (!looking) return is_mine();
  looking_ = *std::move(looking);
  return looking_.wait_for(kLookMax) == std::future_status::ready ? looking_.get() : Result<bool>(no_answer());
}

std::optional<FailedProcess> ManagingLease::failed_before() const {
  const std::lock_guard guard(mutex_);
  return failed_;
}

Result<bool> ManagingLease::is_mine() const {
  const auto holder = commit::read_lease(*storage_, kManagerName);
  if (!holder && storage::is_absent(holder.error())) return false;
  if (!holder) return holder.error();
  return *holder && (*holder)->identity.save_id == identity_.save_id;
}

Result<void> ManagingLease::end(bool has_failed) {
  if (outlasting_.valid()) {
    outlasting_ends_.request_stop();
    if (outlasting_.wait_for(kLookMax) != std::future_status::ready) return no_answer();
    (void)outlasting_.get();
  }
  if (!lease_) return {};
  const auto work = [self = shared_from_this(), has_failed] { return self->give_up(has_failed); };
  CAIRN_TRY_ASSIGN(std::future<Result<void>> ended, in_own_thread("to give up the lease", work));
  if (ended.wait_for(kLookMax) == std::future_status::ready) return ended.get();
  return Error(ErrorCode::kUnavailable,
               "the storage does not answer: the lease stays, and the next manager of this host takes it over when "
               "this process has ended")
      .file(kManagerName);
}

Result<void> ManagingLease::give_up(bool has_failed) {
  lease_.reset();
  CAIRN_TRY_ASSIGN(const std::unique_ptr<storage::StorageLock> lock, storage_->lock());
  CAIRN_TRY_ASSIGN(const bool mine, is_mine());
  if (!mine) return {};
  return has_failed ? commit::Lease::mark_failed(*storage_, kManagerName) : storage_->remove(kManagerName);
}

}  // namespace cairn::run

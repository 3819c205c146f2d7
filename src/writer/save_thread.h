// SaveThread: one save, carried out on a thread of its own from the claim to the end. It writes what is staged while
// the rest is still being copied.
//
// Thread-safe. What is asked of it is answered on its thread, in the order in which it was asked; signals never come
// there. Its owner calls judge() several times a second, from another thread: a save whose storage hangs is given up.
// Then `ended` is called at once, and the thread is left alone with all that it uses: the arena is free when the call
// has returned. Until a save has ended or was given up its owner keeps it, and joins it before dropping it.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "commit/save_fence.h"
#include "data_file/file_image.h"
#include "storage/operation_watch.h"
#include "writer/commit_order.h"
#include "writer/save_writer.h"

namespace cairn::writer {

// How a save opens its directory, which is made if it is not there and `make` is true. `umask` is for what is created.
using OpenDirectory =
    std::function<Result<std::unique_ptr<storage::Storage>>(const std::string& directory, bool make, mode_t umask)>;
Result<std::unique_ptr<storage::Storage>> open_or_make_directory(const std::string& directory, bool make, mode_t umask);

class SaveThread {
 public:
  using Clock = std::chrono::steady_clock;
  using Claimed = std::function<void(Result<commit::SaveTicket>)>;

  // `order` outlives the calls of begin(). kUnavailable if the system has no more threads.
  // `lower_priority` is called on every thread that works for the save, once the trainer does not wait for it any more:
  // before the thread's next block, again and again, and by the end at the latest.
  static Result<std::shared_ptr<SaveThread>> start(CommitOrder& order, SaveWriter::Ended ended,
                                                   std::function<void()> lower_priority,
                                                   OpenDirectory open = open_or_make_directory);
  ~SaveThread();
  SaveThread(const SaveThread&) = delete;
  SaveThread& operator=(const SaveThread&) = delete;

  // As of WriterSave. After the end they are answered at once, with an error.
  void claim(ClaimRequest request, Claimed claimed);
  // What is wrong with it ends the save.
  void begin(SaveRequest request);
  // kInvalidArgument if it was not told to begin.
  Result<void> staged();
  // Of no effect once the bytes are staged, as staged() or the arena's mark tells.
  void abandon(const Error& reason);
  // Staged or not, it is to end soon: what is not committed yet is withdrawn.
  void cancel(const Error& reason);

  // Lets the calls into the storage age; see storage/operation_watch.h.
  void tick(Clock::time_point now) { operations_->tick(now); }
  // Gives the save up if one of them has lasted longer than its deadlines allow. The other ranks are told, as far as
  // the storage lets it within a second.
  void judge();

  commit::ProgressReport progress() const;
  // Whether `ended` has been called and has returned.
  bool has_ended() const;
  // Waits for that; and for the thread, unless the save was given up.
  void join();

 private:
  // Who the other ranks know this one as, once they can know of it.
  struct Place {
    std::string directory;
    SaveId save_id;
    commit::RankPlace ranks;
    mode_t umask = 022;
  };

  SaveThread(CommitOrder& order, SaveWriter::Ended ended, std::function<void()> lower_priority, OpenDirectory open)
      : order_(order),
        open_directory_(std::move(open)),
        report_end_(std::move(ended)),
        lower_priority_(std::move(lower_priority)) {}
  void run();
  void run_tasks_until_begin(std::unique_lock<std::mutex>& lock);
  // False after the end: the task will not run.
  bool post(std::function<void()> task);
  Result<std::unique_ptr<storage::Storage>> open_watched(const std::string& directory, bool make, mode_t umask);
  Result<commit::SaveTicket> do_claim(const ClaimRequest& request);
  void answer_claim(Result<commit::SaveTicket> ticket);
  Result<void> do_begin(SaveRequest request);
  Result<commit::RankSaveReport> end();
  Result<commit::RankSaveReport> finish();
  Result<void> await_staged(std::uint64_t arena_offset);
  void lower_priority_unless_trainer_waits() const;
  void set_rank_save(std::unique_ptr<commit::RankSave> rank_save);
  void give_up(const Error& stall);
  void report_end(const SaveWriter::Ended& report, Result<commit::RankSaveReport> result);
  void tell_others(const Place& place, const Error& reason, commit::SaveFence::GivenUp how) const;

  CommitOrder& order_;
  OpenDirectory open_directory_;
  SaveWriter::Ended report_end_;  // empty once it is being called
  std::function<void()> lower_priority_;
  // Owned by the storage and its files too.
  std::shared_ptr<storage::OperationWatch> operations_ = std::make_shared<storage::OperationWatch>();
  commit::SaveFence fence_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  Claimed claimed_;  // while a claim is not answered
  bool begin_requested_ = false;
  bool begun_ = false;
  bool staged_ = false;
  bool closed_ = false;  // no task is run any more
  bool ended_ = false;
  std::optional<Error> abandoned_;
  SaveDeadlines deadlines_;
  std::optional<Place> place_;
  std::weak_ptr<staging::Arena> arena_;          // of the request, to mark it when the save is given up
  std::shared_ptr<CommitOrder::Turn> turn_;      // owned by the thread too, while it waits
  std::unique_ptr<commit::RankSave> rank_save_;  // the thread's own, but for its progress
  commit::ProgressReport last_progress_;
  std::atomic<bool> cancelled_{false};

  // The thread's own.
  std::optional<Clock::time_point> begin_by_;  // once it has claimed
  std::optional<SaveRequest> request_;
  std::deque<data_file::FileImage> images_;
  std::vector<data_file::ImageFile> files_;

  std::thread thread_;  // not joinable once the save was given up
};

}  // namespace cairn::writer

// SaveThread: carries a save out on a thread of its own, from the claim to the end. Writes staged bytes while the
// trainer copies the rest.
//
// Thread-safe. The thread carries out requests in the order of the calls; the thread is a WatchedThread with one task,
// as long as the save (storage/watched_thread.h). The owner calls judge() several times a second from another thread: a
// save whose storage hangs is given up. Then `ended` is called at once, and the hung thread keeps everything that the
// thread uses. The arena is free once `ended` has returned. The owner keeps the save until the save has ended or was
// given up, and joins the thread before dropping the save.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "commit/save_fence.h"
#include "data_file/file_image.h"
#include "storage/watched_thread.h"
#include "writer/commit_order.h"
#include "writer/save_writer.h"

namespace cairn::writer {

// Opens a save's directory. If `make` is true, a missing directory is made. `umask` applies to new files and
// directories.
using OpenDirectory =
    std::function<Result<std::unique_ptr<storage::Storage>>(const std::string& directory, bool make, mode_t umask)>;
Result<std::unique_ptr<storage::Storage>> open_or_make_directory(const std::string& directory, bool make, mode_t umask);

class SaveThread {
 public:
  using Clock = std::chrono::steady_clock;
  using Claimed = std::function<void(Result<commit::SaveTicket>)>;
  struct Reports {
    SaveWriter::Ended ended;
    SaveWriter::Written written = {};
  };

  // `order` must outlive the calls of begin(). kUnavailable if the system cannot start a thread. `lower_priority` is
  // called on every thread that works for the save, once the trainer no longer waits for the save: repeatedly, before
  // each of the thread's next blocks, and at the latest at the save's end.
  static Result<std::shared_ptr<SaveThread>> start(CommitOrder& order, Reports reports,
                                                   std::function<void()> lower_priority,
                                                   OpenDirectory open = open_or_make_directory);

  // As in WriterSave. After the save's end, `claimed` gets an error at once.
  void claim(ClaimRequest request, Claimed claimed);
  // An invalid request ends the save.
  void begin(SaveRequest request);
  // kInvalidArgument without a preceding begin().
  Result<void> staged();
  // No effect once the bytes are staged, according to staged() or to the arena's mark.
  void abandon(const Error& reason);
  // Ends the save soon, staged or not: withdraws the files unless the save is committed.
  void cancel(const Error& reason);

  // Advances the age of pending calls into the storage; see storage/operation_watch.h.
  void tick(Clock::time_point now) { thread_.tick(now); }
  // As tick(), and gives the save up if a call into the storage has exceeded the deadline. Reports the failure to the
  // remaining ranks, as far as the storage responds within a second.
  void judge();

  commit::ProgressReport progress() const;
  // Whether `ended` has been called and has returned.
  bool has_ended() const;
  // Waits until has_ended(), and for the thread, unless the save was given up.
  void join();

 private:
  // This rank's identity for the remaining ranks, set once the remaining ranks may know the rank.
  struct Place {
    std::string directory;
    std::string committed_directory;  // after the commit of a whole directory; else as `directory`
    SaveId save_id;
    commit::RankPlace ranks;
    mode_t umask = 022;
  };

  SaveThread(CommitOrder& order, Reports reports, std::function<void()> lower_priority, OpenDirectory open)
      : order_(order),
        open_directory_(std::move(open)),
        report_end_(std::move(reports.ended)),
        report_written_(std::move(reports.written)),
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
  SaveWriter::Ended report_end_;  // empty once the function is being called
  const SaveWriter::Written report_written_;
  std::function<void()> lower_priority_;
  commit::SaveFence fence_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  Claimed claimed_;  // set while a claim is not answered
  bool begin_requested_ = false;
  bool begun_ = false;
  bool staged_ = false;
  bool closed_ = false;  // no task runs any more
  bool ended_ = false;
  std::optional<Error> abandoned_;
  SaveDeadlines deadlines_;
  std::optional<Place> place_;
  std::weak_ptr<staging::Arena> arena_;          // of the request, to mark the arena when the save is given up
  std::shared_ptr<CommitOrder::Turn> turn_;      // shared with the thread while the thread waits
  std::unique_ptr<commit::RankSave> rank_save_;  // used only by the thread, except for progress()
  commit::ProgressReport last_progress_;

  // Used only by the thread.
  std::optional<Clock::time_point> begin_by_;  // set once the save has claimed
  events::StepClock write_clock_;              // from begin on
  std::optional<SaveRequest> request_;
  std::vector<std::unique_ptr<data_file::Image>> images_;
  std::vector<data_file::ImageFile> files_;

  storage::WatchedThread thread_{"for a save"};  // the task shares this object
};

}  // namespace cairn::writer

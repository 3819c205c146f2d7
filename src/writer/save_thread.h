// SaveThread: one save, carried out on a thread of its own from the claim to the end. It writes what is staged while
// the rest is still being copied.
//
// Thread-safe. What is asked of it is answered on its thread, in the order in which it was asked; signals never come
// there. Whoever keeps it joins it before dropping it, from another thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "transfer/file_image.h"
#include "writer/commit_order.h"
#include "writer/save_writer.h"

namespace cairn::writer {

class SaveThread {
 public:
  using Claimed = std::function<void(Result<transfer::SaveTicket>)>;

  // `order` outlives the thread. kUnavailable if the system has no more threads.
  // `stand_back` is called on every thread that works for the save, once the trainer does not wait for it any more:
  // before the thread's next block, again and again, and by the end at the latest.
  static Result<std::shared_ptr<SaveThread>> start(CommitOrder& order, SaveWriter::Ended ended,
                                                   std::function<void()> stand_back);
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

  ProgressReport progress() const;
  // Whether `ended` has been called and has returned.
  bool has_ended() const { return ended_.load(); }
  void join();

 private:
  SaveThread(CommitOrder& order, SaveWriter::Ended ended, std::function<void()> stand_back)
      : order_(order), report_end_(std::move(ended)), stand_back_(std::move(stand_back)) {}
  void run();
  void run_tasks_until_told(std::unique_lock<std::mutex>& lock);
  void post(std::function<void()> task, const std::function<void()>& too_late);
  Result<transfer::SaveTicket> do_claim(const ClaimRequest& request);
  Result<void> do_begin(SaveRequest request);
  Result<transfer::RankSaveReport> end();
  Result<transfer::RankSaveReport> finish();
  Result<void> await_staged(std::uint64_t arena_offset);
  void stand_back_unless_hurried() const;
  void set_rank_save(std::unique_ptr<transfer::RankSave> rank_save);

  CommitOrder& order_;
  SaveWriter::Ended report_end_;
  std::function<void()> stand_back_;

  mutable std::mutex mutex_;
  std::condition_variable told_;
  std::deque<std::function<void()>> tasks_;
  bool told_to_begin_ = false;
  bool begun_ = false;
  bool staged_ = false;
  bool closed_ = false;  // no task is run any more
  std::optional<Error> abandoned_;
  std::unique_ptr<transfer::RankSave> rank_save_;  // the thread's own, but for its progress
  ProgressReport last_progress_;
  std::atomic<bool> cancelled_{false};
  std::atomic<bool> ended_{false};

  // The thread's own.
  std::optional<std::chrono::steady_clock::time_point> begin_by_;  // once it has claimed
  std::optional<SaveRequest> request_;
  std::deque<transfer::FileImage> images_;
  std::vector<transfer::ImageFile> files_;
  std::unique_ptr<CommitOrder::Turn> turn_;

  std::thread thread_;
};

}  // namespace cairn::writer

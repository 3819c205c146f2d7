#include "writer/save_thread.h"

#include <cairn/error.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/attempt.h"
#include "core/checked.h"
#include "os/page_buffer.h"
#include "os/start_thread.h"
#include "storage/posix/posix_storage.h"

namespace cairn::writer {
namespace {

using transfer::RankSave;
using Phase = transfer::SaveProgress::Phase;
using Clock = std::chrono::steady_clock;

// Between two looks at how far the arena is staged: short beside the time that a block takes to be copied.
constexpr std::chrono::microseconds kLookMin{100};
constexpr std::chrono::microseconds kLookMax{10'000};

Error out_of_turn(const char* what) { return Error(ErrorCode::kInvalidArgument, what); }

// The image of a file in the arena; its memory begins there, and is the rest of the arena's.
Result<transfer::FileImage> image_of(const StagedLayout::File& file, std::span<std::byte> arena) {
  if (file.arena_offset % os::kPageBytes != 0 || file.arena_offset > arena.size()) {
    return Error(ErrorCode::kInvalidArgument, "a file that does not lie in its arena")
        .expected("a page within " + std::to_string(arena.size()) + " bytes")
        .actual(std::to_string(file.arena_offset));
  }
  return transfer::FileImage::of_staged(file.index, arena.subspan(file.arena_offset));
}

}  // namespace

Result<std::shared_ptr<SaveThread>> SaveThread::start(CommitOrder& order, SaveWriter::Ended ended,
                                                      std::function<void()> stand_back) {
  // Owned by the writer, and by whoever was given the save; never by its own thread, which can't join itself.
  const std::shared_ptr<SaveThread> save(new SaveThread(order, std::move(ended), std::move(stand_back)));
  CAIRN_TRY_ASSIGN(save->thread_,
                   os::start_thread<std::thread>("for a save", [thread = save.get()] { thread->run(); }));
  return save;
}

SaveThread::~SaveThread() { join(); }

void SaveThread::join() {
  if (thread_.joinable()) thread_.join();
}

void SaveThread::post(std::function<void()> task, const std::function<void()>& too_late) {
  std::unique_lock lock(mutex_);
  if (closed_) {
    lock.unlock();
    too_late();
    return;
  }
  tasks_.push_back(std::move(task));
  told_.notify_one();
}

void SaveThread::claim(ClaimRequest request, Claimed claimed) {
  post([this, request = std::move(request), claimed] { claimed(attempt([&] { return do_claim(request); })); },
       [&claimed] { claimed(out_of_turn("a claim for a save that has ended")); });
}

void SaveThread::begin(SaveRequest request) {
  // A function must be copyable, and a request is large: it moves from here to the thread once.
  auto carried = std::make_shared<SaveRequest>(std::move(request));
  // Here and not on the thread: the order is that of the calls.
  auto turn = std::make_shared<std::unique_ptr<CommitOrder::Turn>>(order_.enter(carried->directory));
  {
    const std::lock_guard lock(mutex_);
    told_to_begin_ = true;
  }
  const auto task = [this, carried, turn] {
    turn_ = std::move(*turn);
    const Result<void> begun = attempt([&] { return do_begin(std::move(*carried)); });
    if (!begun) abandon(begun.error());
  };
  post(task, [] {});
}

Result<void> SaveThread::staged() {
  const std::lock_guard lock(mutex_);
  if (!told_to_begin_) return out_of_turn("bytes for a save that has not begun");
  if (staged_) return out_of_turn("bytes that have been staged already");
  staged_ = true;
  told_.notify_one();
  return {};
}

void SaveThread::abandon(const Error& reason) {
  const std::lock_guard lock(mutex_);
  if (!abandoned_) abandoned_ = reason;
  told_.notify_one();
}

void SaveThread::cancel(const Error& reason) {
  cancelled_ = true;
  abandon(reason);
}

ProgressReport SaveThread::progress() const {
  const std::lock_guard lock(mutex_);
  if (!rank_save_) return last_progress_;
  const transfer::SaveProgress& progress = rank_save_->progress();
  const Phase phase = progress.phase;
  return {phase == Phase::kWriting && !staged_ ? Phase::kStaging : phase, progress.bytes_written, progress.bytes_total};
}

void SaveThread::set_rank_save(std::unique_ptr<RankSave> rank_save) {
  const std::lock_guard lock(mutex_);
  rank_save_ = std::move(rank_save);
}

void SaveThread::run_tasks_until_told(std::unique_lock<std::mutex>& lock) {
  while (true) {
    const auto is_told = [this] { return !tasks_.empty() || begun_ || abandoned_; };
    if (!begin_by_) {
      told_.wait(lock, is_told);
    } else if (!told_.wait_until(lock, *begin_by_, is_told)) {
      abandoned_ = Error(ErrorCode::kUnavailable, "the coordinator has claimed the directory, and got no further");
    }
    if (tasks_.empty()) break;
    const std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
  closed_ = true;
}

void SaveThread::run() {
  {
    std::unique_lock lock(mutex_);
    run_tasks_until_told(lock);
  }
  Result<transfer::RankSaveReport> result = attempt([this] { return end(); });
  stand_back_();
  std::unique_ptr<RankSave> done;
  {
    const std::lock_guard lock(mutex_);
    if (rank_save_) last_progress_ = {{}, rank_save_->progress().bytes_written, rank_save_->progress().bytes_total};
    last_progress_.phase = Phase::kEnded;
    done = std::move(rank_save_);
  }
  done.reset();
  files_.clear();
  images_.clear();
  request_.reset();  // and with it the arena
  turn_.reset();
  std::exchange(report_end_, {})(std::move(result));
  ended_ = true;
}

Result<transfer::SaveTicket> SaveThread::do_claim(const ClaimRequest& request) {
  if (rank_save_) return out_of_turn("a second claim for one save");
  CAIRN_TRY_ASSIGN(auto storage, storage::PosixStorage::make_directory(request.directory, request.umask));
  CAIRN_TRY_ASSIGN(auto rank_save,
                   RankSave::claim(std::move(storage), request.identity, request.rank, request.options));
  const transfer::SaveTicket ticket = rank_save->ticket();
  set_rank_save(std::move(rank_save));
  begin_by_ = Clock::now() + request.deadline;
  return ticket;
}

Result<void> SaveThread::do_begin(SaveRequest request) {
  if (request_) return out_of_turn("a save that begins twice");
  const bool claimed = rank_save_ != nullptr;
  if (claimed != request.place.is_coordinator() || claimed != (request.layout->commit_plan != nullptr)) {
    return out_of_turn("the coordinator of a save, and nobody else, claims and commits");
  }
  if (claimed && rank_save_->ticket().identity.save_id != request.ticket.identity.save_id) {
    return out_of_turn("a save that begins is not the one that was claimed");
  }
  if (request.names.size() != request.layout->files.size()) return out_of_turn("names for other files than there are");
  // First of all, so that the others hear of what fails from here on.
  if (!claimed) {
    CAIRN_TRY_ASSIGN(auto storage, storage::PosixStorage::open_directory(request.directory, request.umask));
    set_rank_save(RankSave::join(std::move(storage), request.ticket));
  }
  CAIRN_TRY(rank_save_->enter(request.place));
  // Whole pages are written.
  const std::span<std::byte> arena = request.arena->bytes();
  const std::span<std::byte> pages = arena.first(align_down(arena.size(), os::kPageBytes));
  for (std::size_t i = 0; i < request.names.size(); ++i) {
    const StagedLayout::File& file = request.layout->files[i];
    Result<transfer::FileImage> image = image_of(file, pages);
    if (!image) return std::move(image).error().file(request.names[i]);
    transfer::FileImage& placed = images_.emplace_back(std::move(*image));
    placed.set_save_id(request.ticket.identity.save_id);
    const std::uint64_t room = align_up(placed.file_bytes(), os::kPageBytes);
    files_.push_back({request.names[i], &placed, pages.subspan(file.arena_offset, room),
                      [this, begin = file.arena_offset](std::uint64_t end) { return await_staged(begin + end); }});
  }
  request_ = std::move(request);
  stand_back_unless_hurried();
  const std::lock_guard lock(mutex_);
  begun_ = true;
  return {};
}

Result<transfer::RankSaveReport> SaveThread::end() {
  if (begun_) return finish();
  if (rank_save_) rank_save_->abandon(*abandoned_);
  return *abandoned_;
}

Result<void> SaveThread::await_staged(std::uint64_t arena_offset) {
  std::uint64_t last = 0;
  Clock::time_point last_change = Clock::now();
  for (auto pause = kLookMin;; pause = std::min(pause * 2, kLookMax)) {
    const std::uint64_t staged = request_->arena->staged();
    if (staged >= arena_offset) break;
    {
      const std::lock_guard lock(mutex_);
      if (staged_) break;
      if (abandoned_) return *abandoned_;
    }
    if (staged != last) {
      last = staged;
      last_change = Clock::now();
      pause = kLookMin;
    }
    if (Clock::now() - last_change > request_->deadline) {
      return Error(ErrorCode::kUnavailable, "the trainer has stopped copying its bytes")
          .expected(std::to_string(arena_offset) + " bytes staged")
          .actual(std::to_string(staged));
    }
    std::this_thread::sleep_for(pause);
  }
  stand_back_unless_hurried();
  return {};
}

void SaveThread::stand_back_unless_hurried() const {
  if (request_->trainer_waits && request_->arena->staged() != staging::Arena::kAll) {
    const std::lock_guard lock(mutex_);
    if (!staged_ && !abandoned_) return;
  }
  stand_back_();
}

Result<transfer::RankSaveReport> SaveThread::finish() {
  transfer::RankSaveOptions options;
  options.deadline = request_->deadline;
  options.write.durability = request_->durability;
  options.write.thread_count = request_->thread_count;
  options.write.direct_io = request_->direct_io;
  options.write.interrupted = [this] {
    stand_back_unless_hurried();
    return cancelled_.load();
  };
  std::optional<transfer::CommitDuty> duty;
  if (const auto& commit_plan = request_->layout->commit_plan) {
    duty = commit_plan->duty(request_->ticket, request_->place, request_->checkpoint_id);
  }
  request_->layout.reset();
  return rank_save_->finish(std::move(files_), duty, options, [this] { turn_->wait(); });
}

}  // namespace cairn::writer

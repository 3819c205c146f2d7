#include "writer/save_thread.h"

#include <cairn/result.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>

#include "commit/directory/new_directory.h"
#include "commit/meeting/save_marks.h"
#include "core/attempt.h"
#include "core/checked.h"
#include "events/listeners.h"
#include "os/call_within.h"
#include "os/page_buffer.h"
#include "storage/open_directory.h"
#include "storage/removed_directory.h"
#include "storage/watched_storage.h"

namespace cairn::writer {
namespace {

using commit::RankSave;
using Phase = commit::ProgressTracker::Phase;
using Clock = std::chrono::steady_clock;

// The interval between two looks at the staged part of the arena: short compared with the time to copy a block.
constexpr std::chrono::microseconds kLookMin{100};
constexpr std::chrono::microseconds kLookMax{10'000};
// The limit for reporting to the other ranks why a save was given up: the storage may hang during the report, too.
constexpr std::chrono::milliseconds kTellingMax{1000};

Error out_of_order(const char* what) { return Error(ErrorCode::kInvalidArgument, what); }

// The image of a file in the arena. The file's memory begins at the file's offset and extends to the end of the arena.
Result<std::unique_ptr<data_file::Image>> image_of(const StagedLayout::File& file, const SaveId& save_id,
                                                   std::span<std::byte> arena) {
  if (file.arena_offset % os::kPageBytes != 0 || file.arena_offset > arena.size()) {
    return Error(ErrorCode::kInvalidArgument, "a file that does not lie in its arena")
        .expected("a page within " + std::to_string(arena.size()) + " bytes")
        .actual(std::to_string(file.arena_offset));
  }
  const std::span<std::byte> staged = arena.subspan(file.arena_offset);
  if (file.plain) return file.plain->image(staged);
  CAIRN_TRY_ASSIGN(data_file::FileImage image, data_file::FileImage::of_staged(file.index, staged));
  image.set_save_id(save_id);
  return std::unique_ptr<data_file::Image>(std::make_unique<data_file::FileImage>(std::move(image)));
}

// The name that the commit gives the directory of a save of a whole directory; empty for a save of another form.
Result<std::string> directory_name_of(const std::string& directory, commit::SaveForm form) {
  if (form != commit::SaveForm::kDirectory) return std::string();
  const auto made = commit::new_directory_of_name(std::filesystem::path(directory).filename().string());
  if (!made) return Error(ErrorCode::kInvalidArgument, "not the new directory of a save").file(directory);
  return made->name;
}

// The directory in which the save commits.
std::string place_of_commit(const SaveRequest& request) {
  const Result<std::string> name = directory_name_of(request.directory, request.ticket.identity.form);
  if (!name || name->empty()) return request.directory;
  return (std::filesystem::path(request.directory).parent_path() / *name).string();
}

commit::CommitRequest request_of_directory(const std::vector<std::vector<StagedLayout::NamedFile>>& files) {
  commit::CommitRequest request{[] { return Result<std::string>(""); }, {}, {}};
  for (const std::vector<StagedLayout::NamedFile>& of_rank : files) {
    std::vector<std::string>& names = request.files.emplace_back();
    std::vector<std::uint64_t>& sizes = request.sizes.emplace_back();
    for (const StagedLayout::NamedFile& file : of_rank) {
      names.push_back(file.name);
      sizes.push_back(file.bytes);
    }
  }
  return request;
}

// Leaves a mark in the private folder of a save given up by this rank.
Result<void> leave_outcome(storage::Storage& storage, const SaveId& save_id, const commit::RankPlace& place,
                           const Error& reason, commit::SaveFence::GivenUp how) {
  commit::SaveMarks marks(storage, save_id);
  CAIRN_TRY(storage.join_folder(marks.folder()));
  const auto decide = [&marks](const commit::Decision& decision) -> Result<void> {
    CAIRN_TRY(marks.write_decision(decision));
    marks.hint_at_decision();
    return {};
  };
  if (how == commit::SaveFence::GivenUp::kCommitted) return decide({});
  if (!place.is_coordinator()) {
    CAIRN_TRY(marks.write_failure(place.rank, reason));
    // Removes the lease: the coordinator must not wait until this rank has read the decision.
    return storage.remove(marks.path_of(commit::rank_lease_name(place.rank)));
  }
  if (how == commit::SaveFence::GivenUp::kUnknown) return {};
  return decide({Error::of_ranks({Error(reason).rank(place.rank)})});
}

}  // namespace

Result<std::unique_ptr<storage::Storage>> open_or_make_directory(const std::string& directory, bool make,
                                                                 mode_t umask) {
  return make ? storage::make_directory(directory, umask) : storage::open_directory(directory, umask);
}

Result<std::shared_ptr<SaveThread>> SaveThread::start(CommitOrder& order, Reports reports,
                                                      std::function<void()> lower_priority, OpenDirectory open) {
  // Owned by the writer, by the save's client, and by the save's thread, which outlives both if the save was given up.
  // Otherwise the writer joins the thread before dropping the save.
  const std::shared_ptr<SaveThread> save(
      new SaveThread(order, std::move(reports), std::move(lower_priority), std::move(open)));
  CAIRN_TRY(save->thread_.post([save] { save->run(); }));
  save->thread_.close();  // the only task
  return save;
}

bool SaveThread::has_ended() const {
  const std::lock_guard lock(mutex_);
  return ended_;
}

void SaveThread::join() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended_; });
  }
  thread_.join();
}

bool SaveThread::post(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  if (closed_ || !report_end_) return false;
  tasks_.push_back(std::move(task));
  changed_.notify_all();
  return true;
}

void SaveThread::claim(ClaimRequest request, Claimed claimed) {
  {
    const std::lock_guard lock(mutex_);
    deadlines_ = request.deadlines;
    claimed_ = std::move(claimed);
  }
  const auto task = [this, request = std::move(request)] { answer_claim(attempt([&] { return do_claim(request); })); };
  if (post(task)) return;
  std::optional<Error> reason;
  {
    const std::lock_guard lock(mutex_);
    reason = abandoned_;
  }
  answer_claim(reason.value_or(out_of_order("claim sent after the end of the save")));
}

void SaveThread::answer_claim(Result<commit::SaveTicket> ticket) {
  Claimed claimed;
  {
    const std::lock_guard lock(mutex_);
    claimed = std::exchange(claimed_, {});
  }
  if (claimed) claimed(std::move(ticket));
}

void SaveThread::begin(SaveRequest request) {
  // std::function must be copyable, and a request is large: the shared pointer moves the request to the thread without
  // a copy.
  auto carried = std::make_shared<SaveRequest>(std::move(request));
  // Entered here and not on the thread: the order is the order of the calls.
  std::shared_ptr<CommitOrder::Turn> turn = order_.enter(place_of_commit(*carried), carried->deadlines.publish);
  {
    const std::lock_guard lock(mutex_);
    begin_requested_ = true;
    deadlines_ = carried->deadlines;
    arena_ = carried->arena;
    if (!turn_) turn_ = std::move(turn);
  }
  post([this, carried] {
    const Result<void> begun = attempt([&] { return do_begin(std::move(*carried)); });
    if (!begun) abandon(begun.error());
  });
}

Result<void> SaveThread::staged() {
  const std::lock_guard lock(mutex_);
  if (!begin_requested_) return out_of_order("staged sent before begin");
  if (staged_) return out_of_order("staged sent twice");
  staged_ = true;
  changed_.notify_all();
  return {};
}

void SaveThread::abandon(const Error& reason) {
  const std::lock_guard lock(mutex_);
  if (!abandoned_) abandoned_ = reason;
  changed_.notify_all();
}

void SaveThread::cancel(const Error& reason) {
  thread_.interrupt();
  abandon(reason);
}

commit::ProgressReport SaveThread::progress() const {
  const std::lock_guard lock(mutex_);
  if (!report_end_ || last_progress_.phase == Phase::kEnded) return last_progress_;
  if (!rank_save_) return {Phase::kStaging, 0, 0, thread_.watch()->operations->oldest()};
  commit::ProgressReport report = rank_save_->progress();
  const bool is_staging = report.phase == Phase::kWriting && !staged_;
  if (is_staging) report.phase = Phase::kStaging;
  return report;
}

void SaveThread::judge() {
  SaveDeadlines deadlines;
  {
    const std::lock_guard lock(mutex_);
    deadlines = deadlines_;
  }
  if (const auto stall = thread_.overdue(deadlines)) give_up(*stall);
}

void SaveThread::give_up(const Error& stall) {
  using GivenUp = commit::SaveFence::GivenUp;
  SaveWriter::Ended report;
  std::optional<Place> place;
  Error reason = stall;
  auto how = GivenUp::kForGood;
  {
    const std::lock_guard lock(mutex_);
    if (!report_end_) return;  // the save has just ended
    report = std::exchange(report_end_, {});
    how = fence_.give_up();
    if (how == GivenUp::kUnknown) {
      reason = std::move(reason).while_doing(
          "committing: it is unknown whether the save is or will be committed, look at the directory");
    }
    if (rank_save_) last_progress_ = rank_save_->progress();
    last_progress_.phase = Phase::kEnded;
    last_progress_.pending.reset();
    thread_.abandon();
    if (!abandoned_) abandoned_ = reason;
    changed_.notify_all();
    if (const auto arena = arena_.lock()) arena->note_stuck();
    if (turn_ && how == GivenUp::kUnknown) turn_->note_stuck();
    if (turn_ && how != GivenUp::kUnknown) turn_->leave();
    place = place_;
  }
  if (place && place->ranks.count > 1) {
    tell_others(*place, reason, how);
    reason = Error::of_ranks({std::move(reason).rank(place->ranks.rank)});
  }
  answer_claim(reason);
  if (how != GivenUp::kCommitted) {
    report_end(report, reason);
    return;
  }
  const std::string warning = std::string("committed, but not cleaned up: ") + reason.what();
  report_end(report, commit::RankSaveReport{last_progress_.bytes_written, {warning}});
}

void SaveThread::tell_others(const Place& place, const Error& reason, commit::SaveFence::GivenUp how) const {
  const auto tell = [place, reason, how, open = open_directory_] {
    const auto tell_in = [&](const std::string& directory) -> Result<void> {
      CAIRN_TRY_ASSIGN(const std::unique_ptr<storage::Storage> storage, open(directory, false, place.umask));
      return leave_outcome(*storage, place.save_id, place.ranks, reason, how);
    };
    return attempt([&]() -> Result<void> {
      Result<void> told = tell_in(place.directory);
      const bool may_have_moved = place.committed_directory != place.directory;
      return told || !may_have_moved ? told : tell_in(place.committed_directory);
    });
  };
  (void)os::call_within(kTellingMax, tell);
}

void SaveThread::report_end(const SaveWriter::Ended& report, Result<commit::RankSaveReport> result) {
  report(std::move(result));
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

void SaveThread::set_rank_save(std::unique_ptr<RankSave> rank_save) {
  const std::lock_guard lock(mutex_);
  rank_save_ = std::move(rank_save);
}

void SaveThread::run_tasks_until_begin(std::unique_lock<std::mutex>& lock) {
  while (true) {
    const auto has_work = [this] { return !tasks_.empty() || begun_ || abandoned_; };
    if (!begin_by_) {
      changed_.wait(lock, has_work);
    } else if (!changed_.wait_until(lock, *begin_by_, has_work)) {
      abandoned_ = Error(ErrorCode::kUnavailable,
                         "the coordinator claimed the directory, but sent no begin within deadline_seconds");
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
  events::write_trace();  // the trainer's lines of this save
  {
    std::unique_lock lock(mutex_);
    run_tasks_until_begin(lock);
  }
  Result<commit::RankSaveReport> result = attempt([this] { return end(); });
  lower_priority_();
  std::unique_ptr<RankSave> done;
  {
    const std::lock_guard lock(mutex_);
    if (rank_save_ && report_end_) last_progress_ = rank_save_->progress();
    last_progress_.phase = Phase::kEnded;
    last_progress_.pending.reset();
    done = std::move(rank_save_);
  }
  done.reset();
  files_.clear();
  images_.clear();
  request_.reset();  // releases the arena
  SaveWriter::Ended report;
  {
    const std::lock_guard lock(mutex_);
    if (turn_) turn_->leave();
    report = std::exchange(report_end_, {});
  }
  if (report) report_end(report, std::move(result));
}

Result<std::unique_ptr<storage::Storage>> SaveThread::open_watched(const std::string& directory, bool make,
                                                                   mode_t umask) {
  return storage::open_watched([&] { return open_directory_(directory, make, umask); }, thread_.watch(), directory);
}

Result<commit::SaveTicket> SaveThread::do_claim(const ClaimRequest& request) {
  if (rank_save_) return out_of_order("claim sent twice");
  commit::ClaimOptions options = request.options;
  CAIRN_TRY_ASSIGN(options.directory_name, directory_name_of(request.directory, request.identity.form));
  CAIRN_TRY_ASSIGN(auto rank_save, storage::retry_in_removed_directory([&]() -> Result<std::unique_ptr<RankSave>> {
                     CAIRN_TRY_ASSIGN(auto storage, open_watched(request.directory, true, request.umask));
                     return RankSave::claim(std::move(storage), request.identity, request.rank, options,
                                            thread_.watch()->operations);
                   }));
  const commit::SaveTicket ticket = rank_save->ticket();
  set_rank_save(std::move(rank_save));
  begin_by_ = Clock::now() + std::min<std::chrono::milliseconds>(request.deadlines.progress, os::kCallLimitMax);
  return ticket;
}

Result<void> SaveThread::do_begin(SaveRequest request) {
  if (request_) return out_of_order("begin sent twice");
  write_clock_ = {};
  events::write_trace();  // the lines of a writer process
  const bool claimed = rank_save_ != nullptr;
  if (claimed != request.place.is_coordinator() || claimed != request.layout->is_of_coordinator()) {
    return out_of_order("claim or commit plan missing at the coordinator, or sent by another rank");
  }
  if (claimed && rank_save_->ticket().identity.save_id != request.ticket.identity.save_id) {
    return out_of_order("begin has a save id that differs from the claim's");
  }
  if (request.names.size() != request.layout->files.size())
    return out_of_order("number of file names differs from the layout");
  // Join first: the other ranks then learn of every failure from here on.
  if (!claimed) {
    CAIRN_TRY_ASSIGN(std::string name, directory_name_of(request.directory, request.ticket.identity.form));
    CAIRN_TRY_ASSIGN(auto storage, open_watched(request.directory, false, request.umask));
    set_rank_save(RankSave::join(std::move(storage), request.ticket, thread_.watch()->operations, std::move(name)));
  }
  {
    const std::lock_guard lock(mutex_);
    place_ = {request.directory, place_of_commit(request), request.ticket.identity.save_id, request.place,
              request.umask};
  }
  CAIRN_TRY(rank_save_->enter(request.place, {.has_files = !request.names.empty(), .fence = &fence_}));
  // The writer writes whole pages.
  const std::span<std::byte> arena = request.arena->bytes();
  const std::span<std::byte> pages = arena.first(align_down(arena.size(), os::kPageBytes));
  for (std::size_t i = 0; i < request.names.size(); ++i) {
    const StagedLayout::File& file = request.layout->files[i];
    Result<std::unique_ptr<data_file::Image>> image = image_of(file, request.ticket.identity.save_id, pages);
    if (!image) return std::move(image).error().file(request.names[i]);
    const data_file::Image& placed = *images_.emplace_back(std::move(*image));
    const std::uint64_t room = align_up(placed.file_bytes(), os::kPageBytes);
    if (room > pages.size() - file.arena_offset) {
      return Error(ErrorCode::kInvalidArgument, "a file that does not lie in its arena").file(request.names[i]);
    }
    files_.push_back({request.names[i], &placed, pages.subspan(file.arena_offset, room),
                      [this, begin = file.arena_offset](std::uint64_t end) { return await_staged(begin + end); }});
  }
  request_ = std::move(request);
  lower_priority_unless_trainer_waits();
  const std::lock_guard lock(mutex_);
  begun_ = true;
  return {};
}

Result<commit::RankSaveReport> SaveThread::end() {
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
    if (Clock::now() - last_change > request_->deadlines.progress) {
      return Error(ErrorCode::kUnavailable, "the trainer staged no bytes for deadline_seconds")
          .expected(std::to_string(arena_offset) + " bytes staged")
          .actual(std::to_string(staged));
    }
    std::this_thread::sleep_for(pause);
  }
  lower_priority_unless_trainer_waits();
  return {};
}

void SaveThread::lower_priority_unless_trainer_waits() const {
  if (request_->trainer_waits && request_->arena->staged() != staging::Arena::kAll) {
    const std::lock_guard lock(mutex_);
    if (!staged_ && !abandoned_) return;
  }
  lower_priority_();
}

Result<commit::RankSaveReport> SaveThread::finish() {
  commit::RankSaveOptions options;
  options.deadlines = request_->deadlines;
  options.write.durability = request_->durability;
  options.write.thread_count = request_->thread_count;
  options.write.direct_io = request_->direct_io;
  options.write.interrupted = [this] {
    lower_priority_unless_trainer_waits();
    return thread_.is_stopped();
  };
  if (report_written_) {
    options.written = [this](std::uint64_t bytes) { report_written_({bytes, write_clock_.read(), getpid()}); };
  }
  std::optional<commit::CommitRequest> commit_request;
  if (const auto& commit_plan = request_->layout->commit_plan) {
    commit_request =
        commit_plan->commit_request(request_->ticket, request_->place, request_->checkpoint_id, request_->notes);
  } else if (const auto& files = request_->layout->directory_files) {
    commit_request = request_of_directory(*files);
  }
  request_->layout.reset();
  std::shared_ptr<CommitOrder::Turn> turn;
  {
    const std::lock_guard lock(mutex_);
    turn = turn_;
  }
  Result<commit::RankSaveReport> report = rank_save_->finish(std::move(files_), commit_request, options, [this, turn] {
    return turn->wait([this] { return thread_.is_stopped(); });
  });
  const std::lock_guard lock(mutex_);
  // The caller gave a reason for the interruption.
  if (!report && report.error().code() == ErrorCode::kCancelled && abandoned_) return *abandoned_;
  return report;
}

}  // namespace cairn::writer

// RankSaves: asynchronous saves by several ranks, which meet in a real directory: as threads, and as processes that are
// killed. For tests.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "commit/meeting/rank_save.h"
#include "commit/testing/one_save.h"
#include "data_file/file_image.h"
#include "format/manifest/trailer.h"
#include "storage/posix/posix_storage.h"
#include "storage/testing/dying_storage.h"
#include "storage/testing/scratch_directory.h"

namespace cairn::commit {

using storage::PosixStorage;
using storage::Storage;

// A rank's state: a tensor of the rank.
class RankBytes {
 public:
  RankBytes(const SaveTicket& ticket, std::uint32_t rank, std::uint32_t count)
      : values_(10'000 + 100 * rank, static_cast<float>(ticket.identity.save_number)) {
    const auto size = static_cast<std::int64_t>(values_.size());
    EXPECT_TRUE(state_.add_tensor(Path{"t", std::to_string(rank)},
                                  TensorView::contiguous(values_.data(), DType::kFloat32, {size})));
    const Entry& entry = state_.entries().front();
    data_file::ItemSource source;
    source.entry = &entry;
    source.tensor = std::get_if<TensorEntry>(&entry.content);
    image_ = data_file::FileImage::make({ticket.identity.save_id, rank, 0, count}, std::array{source}).value();
    name_ = data_file_name(ticket, rank, 0);
  }

  std::vector<data_file::ImageFile> files() const { return {{name_, &*image_}}; }
  const std::string& name() const { return name_; }

 private:
  std::vector<float> values_;
  StateDict state_;
  std::optional<data_file::FileImage> image_;
  std::string name_;
};

inline CommitRequest commit_request_of(const SaveTicket& ticket, std::uint32_t count) {
  CommitRequest commit_request;
  commit_request.render = [] { return Result<std::string>("pickle"); };
  for (std::uint32_t rank = 0; rank < count; ++rank)
    commit_request.files.push_back({RankBytes(ticket, rank, count).name()});
  return commit_request;
}

// The number of the save in place, if the checkpoint is complete; 0: no checkpoint; -1: a broken checkpoint.
inline int checkpoint_in(const Storage& storage) {
  const auto now = read_metadata_in_place(storage);
  if (!now || (now->present && !now->record)) return -1;
  if (!now->present) return 0;
  for (const auto& file : now->record->files) {
    const auto opened = storage.open(file.name, false);
    if (!opened || (*opened)->size() != file.size) return -1;
    const auto trailer = manifest::read_trailer(**opened);
    if (!trailer || !*trailer || (*trailer)->save_id() != now->record->save_id) return -1;
    if ((*trailer)->checksum() != file.trailer_checksum) return -1;
  }
  return static_cast<int>(now->record->save_number);
}

using Reports = std::vector<Result<RankSaveReport>>;
using Opening = std::function<std::unique_ptr<Storage>()>;

// A save by `count` ranks. A test changes members before run().
class GroupSave {
 public:
  GroupSave(Opening opening, std::uint32_t count, std::uint32_t coordinator)
      : opening_(std::move(opening)), count_(count), coordinator_(coordinator) {
    options.write.thread_count = 1;
  }

  // Acts as the coordinator's process, and keeps the ticket for the other ranks.
  void claim(const SaveIdentity& identity) { claim_by(opening_, identity); }
  // Claims with `opening` for the coordinator only.
  void claim_by(const Opening& opening, const SaveIdentity& identity) {
    claimed_ = RankSave::claim(opening(), identity, coordinator_).value();
    come_with(claimed_->ticket());
  }
  void come_with(const SaveTicket& ticket) {
    ticket_ = ticket;
    commit_request_ = commit_request_of(ticket, count_);
  }

  const SaveTicket& ticket() const { return ticket_; }
  const CommitRequest& commit_request() const { return commit_request_; }
  const std::string& name_of(std::uint32_t rank) const { return commit_request_.files[rank].front(); }

  // Replaces a rank's actions after enter(); and replaces the opening of a rank's directory.
  using Action = std::function<Result<RankSaveReport>(RankSave&)>;
  std::map<std::uint32_t, Action> instead = {};
  std::map<std::uint32_t, Opening> opened_by = {};
  RankSaveOptions options = {};
  std::function<Result<void>()> may_commit = {};

  Result<RankSaveReport> finish(RankSave& save, std::uint32_t rank) const {
    const RankBytes bytes(ticket_, rank, count_);
    if (rank != coordinator_) return save.finish(bytes.files(), std::nullopt, options);
    return save.finish(bytes.files(), commit_request_, options, may_commit);
  }

  Result<RankSaveReport> run_rank(std::uint32_t rank) {
    const Opening& opening = opened_by.contains(rank) ? opened_by[rank] : opening_;
    auto save = rank == coordinator_ ? std::move(claimed_) : RankSave::join(opening(), ticket_);
    CAIRN_TRY(save->enter({rank, count_, coordinator_}));
    if (instead.contains(rank)) return instead[rank](*save);
    Result<RankSaveReport> report = finish(*save, rank);
    EXPECT_EQ(save->progress().phase, ProgressTracker::Phase::kEnded);
    if (report) EXPECT_EQ(save->progress().bytes_written, save->progress().bytes_total);
    return report;
  }

  // `absent` ranks do nothing.
  Reports run(const std::vector<std::uint32_t>& absent = {}) {
    Reports reports(count_, Error(ErrorCode::kInternal, "absent"));
    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank < count_; ++rank) {
      if (std::find(absent.begin(), absent.end(), rank) != absent.end()) continue;
      threads.emplace_back([&, rank] { reports[rank] = run_rank(rank); });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::uint32_t rank : absent) reports.erase(reports.begin() + rank);
    return reports;
  }

 private:
  Opening opening_;
  std::uint32_t count_;
  std::uint32_t coordinator_;
  std::unique_ptr<RankSave> claimed_;
  SaveTicket ticket_;
  CommitRequest commit_request_;
};

inline void expect_all_saved(const Reports& reports) {
  for (const auto& report : reports) {
    ASSERT_TRUE(report) << report.error().what();
    EXPECT_TRUE(report->warnings.empty());
    EXPECT_GT(report->bytes_written, 40'000u);
  }
}

// All ranks failed with an equal error. `rank` is the first rank that the error blames.
inline void expect_all_failed(const Reports& reports, ErrorCode code, std::uint32_t rank) {
  for (const auto& report : reports) {
    ASSERT_FALSE(report);
    EXPECT_EQ(report.error().code(), code) << report.error().what();
    EXPECT_EQ(report.error().rank(), rank) << report.error().what();
    EXPECT_FALSE(report.error().causes().empty());
    EXPECT_STREQ(report.error().what(), reports.front().error().what());
  }
}

using storage::DyingStorage;
using Moment = DyingStorage::Moment;

// A child process. was_killed() waits for its end.
class Process {
 public:
  explicit Process(const std::function<void()>& work) : pid_(fork()) {
    if (pid_ != 0) return;
    work();
    _exit(0);
  }
  // Whether the process was killed rather than ended by itself.
  bool was_killed() {
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    return WIFSIGNALED(status);
  }

 private:
  pid_t pid_;
};

class RankSaves : public testing::Test {
 protected:
  RankSaves() : storage_(open()) {}
  std::unique_ptr<Storage> open() const { return PosixStorage::open_directory(directory_.path()).value(); }
  Opening opening() const {
    return [this] { return open(); };
  }
  GroupSave save(std::uint64_t number, std::uint32_t count, std::uint32_t coordinator = 0) const {
    GroupSave group(opening(), count, coordinator);
    group.claim(save_number(number));
    return group;
  }
  void save_well(std::uint64_t number, std::uint32_t count = 3) const { expect_all_saved(save(number, count).run()); }
  // The checkpoint of the save is in place, and the directory holds no other file.
  void expect_only(int number, std::size_t files = 3) const {
    EXPECT_EQ(checkpoint_in(*storage_), number);
    EXPECT_EQ(names_in(*storage_).size(), number == 0 ? 0 : files + 1);
  }
  Opening dying(Moment moment, int operation = -1) const {
    return [this, moment, operation] { return std::make_unique<DyingStorage>(open(), moment, operation); };
  }
  // Three ranks save. Rank `rank` is a process that dies at the moment of `opening`, or not at all. Returns the reports
  // of the other ranks.
  Reports save_with_process(std::uint64_t number, std::uint32_t rank, const Opening& opening, bool& killed) const;

  storage::ScratchDirectory directory_;
  std::unique_ptr<Storage> storage_;
};

// A pipe that carries a ticket from a process to a second process.
class TicketPipe {
 public:
  TicketPipe() { EXPECT_EQ(pipe(ends_.data()), 0); }
  TicketPipe(const TicketPipe&) = delete;
  TicketPipe& operator=(const TicketPipe&) = delete;
  ~TicketPipe() {
    close(ends_[0]);
    close_writing_end();
  }

  void send(const SaveTicket& ticket) {
    const std::string text = encode_ticket(ticket);
    EXPECT_EQ(write(ends_[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  // Nullopt if the sender died before sending. Only the receiver calls receive(), and only once.
  std::optional<SaveTicket> receive() {
    close_writing_end();
    std::string text(256, '\0');
    const ssize_t length = read(ends_[0], text.data(), text.size());
    if (length <= 0) return std::nullopt;
    return decode_ticket(text.substr(0, static_cast<std::size_t>(length))).value();
  }

 private:
  void close_writing_end() {
    if (ends_[1] >= 0) close(std::exchange(ends_[1], -1));
  }
  std::array<int, 2> ends_{-1, -1};
};

// Makes the child before this process claims the save: the claim starts a thread, and the thread sanitizer refuses new
// threads in a child of a process with several threads.
inline Reports RankSaves::save_with_process(std::uint64_t number, std::uint32_t rank, const Opening& opening,
                                            bool& killed) const {
  TicketPipe tickets;
  if (rank != 0) {
    Process process([&] {
      const std::optional<SaveTicket> ticket = tickets.receive();
      if (!ticket) return;
      GroupSave group(opening, 3, 0);
      group.come_with(*ticket);
      (void)group.run_rank(rank);
    });
    GroupSave group = save(number, 3);
    group.options.deadlines.progress = std::chrono::milliseconds(300);  // for a process that dies before taking a lease
    tickets.send(group.ticket());
    Reports reports = group.run({rank});
    killed = process.was_killed();
    return reports;
  }
  Process process([&] {
    GroupSave group(opening, 3, 0);
    group.claim(save_number(number));
    tickets.send(group.ticket());
    (void)group.run_rank(0);
  });
  Reports reports;
  // Otherwise the process died before the other ranks had a ticket.
  if (const std::optional<SaveTicket> ticket = tickets.receive()) {
    GroupSave others(this->opening(), 3, 0);
    others.come_with(*ticket);
    reports = others.run({0});
  }
  killed = process.was_killed();
  return reports;
}

}  // namespace cairn::commit

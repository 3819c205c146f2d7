// The steps of the writer process:
// 1. The server answers the trainer's hello with `ready`.
// 2. The server keeps an arena until a message forgets the arena, and a layout until a message replaces the layout. A
//    save may keep its arena and layout longer.
// 3. Messages start, claim, begin and stage saves. Each save has a thread, which also sends the save's answers: this
//    loop never waits for the storage. While saves are in flight, the server sends each save's progress four times a
//    second, with the age of pending calls into the storage.
// 4. The trainer is lost when the socket ends or the trainer's process dies, whichever the server sees first; messages
//    sent before still count. Staged saves continue to the end; unstaged saves are given up. From now on the server
//    itself checks for hanging calls into the storage: the save is given up, and the save's thread left alone.
// 5. SIGTERM: the server accepts no more saves. Unstaged saves are given up. Staged saves get the grace period; saves
//    still in flight afterwards are cancelled, and get a few seconds to withdraw files and to report to the remaining
//    ranks.
// 6. Without saves, and without a trainer or after SIGTERM, the process ends.
#include "writer/server.h"

#include <cairn/version.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "os/process_descriptor.h"

namespace cairn::writer {
namespace {

constexpr std::chrono::milliseconds kProgressInterval{250};
// The interval of checks for the trainer's death on systems without process descriptors.
constexpr std::chrono::milliseconds kWatchInterval{1000};
constexpr std::chrono::milliseconds kWithdrawalMax{3000};

Error no_such(const char* what, std::uint64_t number) {
  return Error(ErrorCode::kCorrupt, std::string("a message about ") + what + " that was never sent")
      .actual(std::to_string(number));
}

}  // namespace

Result<void> WriterServer::prepare() {
  sigset_t end;
  sigemptyset(&end);
  sigaddset(&end, SIGTERM);
  signals_ = os::Fd(signalfd(-1, &end, SFD_CLOEXEC | SFD_NONBLOCK));
  wake_ = os::Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!signals_ || !wake_) return Error::from_errno(errno, "can't listen for signals");
  trainer_id_ = getppid();
  trainer_ = os::open_process(trainer_id_);
  return {};
}

Result<void> WriterServer::run() {
  CAIRN_TRY(prepare());
  while (true) {
    drop_ended_saves();
    if (saves_.empty() && (trainer_lost_ || grace_ends_)) return {};  // (6)
    if (grace_ends_ && Clock::now() > *grace_ends_ + kWithdrawalMax) return {};
    wait();
    if (!trainer_lost_) {
      const Result<void> taken = receive_messages();
      if (!taken) lose_trainer(taken.error());
    }
    signalfd_siginfo signal;
    if (read(signals_.get(), &signal, sizeof signal) == sizeof signal) begin_to_end();
    if (grace_ends_ && Clock::now() > *grace_ends_) {
      for (const auto& [number, save] : saves_) save->cancel(*ending_);
    }
    watch_saves();
    send_progress();
  }
}

void WriterServer::wait() {
  std::array<pollfd, 4> sources{{{signals_.get(), POLLIN, 0},
                                 {wake_.get(), POLLIN, 0},
                                 {trainer_lost_ ? -1 : socket_.fd(), POLLIN, 0},
                                 {trainer_lost_ ? -1 : trainer_.get(), POLLIN, 0}}};
  std::chrono::milliseconds time{-1};
  if (!trainer_ && !trainer_lost_) time = kWatchInterval;
  if (!saves_.empty()) time = kProgressInterval;
  (void)poll(sources.data(), sources.size(), static_cast<int>(time.count()));
  std::uint64_t ignored = 0;
  (void)!read(wake_.get(), &ignored, sizeof ignored);
}

Result<void> WriterServer::receive_messages() {
  // Check the trainer before reading the socket: after the trainer's death no message can arrive behind the last one
  // read.
  pollfd trainer{trainer_.get(), POLLIN, 0};
  const bool is_dead = !has_parent_between_ && (getppid() != trainer_id_ || (trainer_ && poll(&trainer, 1, 0) > 0));
  while (true) {
    CAIRN_TRY_ASSIGN(std::optional<os::Message> message, socket_.receive());
    if (message) {
      CAIRN_TRY(handle(std::move(*message)));
      continue;
    }
    if (!socket_.has_ended() && !is_dead) return {};
    return Error(ErrorCode::kCancelled, is_dead ? "the trainer died before the bytes were staged"
                                                : "the trainer left before the bytes were staged");
  }
}

Result<void> WriterServer::handle(os::Message message) {
  const auto kind = static_cast<MessageKind>(message.kind);
  if (!greeted_ && kind != MessageKind::kHello) return Error(ErrorCode::kCorrupt, "a message before the greeting");
  switch (kind) {
    case MessageKind::kHello: return handle_hello(message);
    case MessageKind::kArena: return handle_arena(std::move(message));
    case MessageKind::kClaim: return handle_claim(message);
    case MessageKind::kBegin: return handle_begin(message);
    case MessageKind::kForgetArena: {
      CAIRN_TRY_ASSIGN(const std::uint64_t arena, decode_number(message.bytes));
      arenas_.erase(arena);
      return {};
    }
    case MessageKind::kLayout: return handle_layout(std::move(message));
    case MessageKind::kStart: {
      CAIRN_TRY_ASSIGN(const StartMessage start, decode_start(message.bytes));
      return start_save(start);
    }
    case MessageKind::kStaged: {
      CAIRN_TRY_ASSIGN(const std::uint64_t number, decode_number(message.bytes));
      SaveThread* const save = find(number);
      return save != nullptr ? save->staged() : Result<void>();
    }
    case MessageKind::kAbandon: {
      CAIRN_TRY_ASSIGN(const OutcomeMessage abandoned, decode_outcome_message(message.bytes));
      if (abandoned.outcome) return Error(ErrorCode::kCorrupt, "a save abandoned without a reason");
      if (SaveThread* const save = find(abandoned.save)) save->abandon(abandoned.outcome.error());
      return {};
    }
    default: return Error(ErrorCode::kCorrupt, "a message of an unknown kind").actual(std::to_string(message.kind));
  }
}

Result<void> WriterServer::handle_hello(const os::Message& message) {
  if (greeted_) return Error(ErrorCode::kCorrupt, "a second greeting");
  CAIRN_TRY_ASSIGN(const HelloMessage hello, decode_hello(message.bytes));
  OutcomeMessage ready;
  if (hello.protocol_version != kProtocolVersion || hello.cairn_version != kVersion) {
    ready.outcome = Error(ErrorCode::kUnsupported, "the writer process is of another version of Cairn")
                        .expected(hello.cairn_version)
                        .actual(kVersion);
    send(MessageKind::kReady, ready);
    return ready.outcome.error();
  }
  has_parent_between_ = hello.trainer != trainer_id_;
  if (has_parent_between_) trainer_ = os::Fd();
  priority_.set(hello.priority);
  grace_ = hello.grace;
  greeted_ = true;
  send(MessageKind::kReady, ready);  // (1)
  return {};
}

Result<void> WriterServer::handle_arena(os::Message message) {
  CAIRN_TRY_ASSIGN(const std::uint64_t number, decode_number(message.bytes));
  if (!message.fd) return Error(ErrorCode::kCorrupt, "an arena without its descriptor");
  CAIRN_TRY_ASSIGN(os::MemoryFile memory, os::MemoryFile::adopt(std::move(message.fd)));
  CAIRN_TRY_ASSIGN(arenas_[number], staging::Arena::adopt(std::move(memory)));  // (2)
  return {};
}

Result<void> WriterServer::handle_layout(os::Message message) {
  std::optional<os::MemoryFile> memory;
  std::string_view bytes = message.bytes;
  if (message.fd) {
    CAIRN_TRY_ASSIGN(const std::uint64_t length, decode_number(message.bytes));
    CAIRN_TRY_ASSIGN(memory, os::MemoryFile::adopt(std::move(message.fd)));
    if (length > memory->bytes().size()) return Error(ErrorCode::kCorrupt, "a layout beyond its memory");
    bytes = {reinterpret_cast<const char*>(memory->bytes().data()), length};
  }
  CAIRN_TRY_ASSIGN(LayoutMessage sent, decode_layout(bytes));
  layouts_[sent.slot] = std::make_shared<const StagedLayout>(std::move(sent.layout));
  return {};
}

SaveThread* WriterServer::find(std::uint64_t save) {
  // A missing save is no error: the message has crossed the report of the save's end.
  const auto found = saves_.find(save);
  return found == saves_.end() ? nullptr : found->second.get();
}

Result<void> WriterServer::start_save(const StartMessage& message) {
  const std::uint64_t number = message.save;
  if (number <= last_save_) return Error(ErrorCode::kCorrupt, "saves that are started out of order");
  last_save_ = number;
  // Set before the save gets its first request, and therefore before the save ends. The thread is joined before the
  // SaveThread is dropped.
  const auto thread = std::make_shared<SaveThread*>();
  auto report_end = [this, number, thread](Result<commit::RankSaveReport> result) {  // (3)
    send_at_once({{{number, (*thread)->progress()}}});  // the last progress sent may be old
    tell_end(number, result);
    OutcomeMessage ended{number};
    if (result) {
      ended.outcome = encode_report(*result);
    } else {
      ended.outcome = std::move(result).error();
    }
    send(MessageKind::kEnded, ended);
    const std::lock_guard lock(ended_mutex_);
    ended_.push_back(number);
    const std::uint64_t one = 1;
    (void)!write(wake_.get(), &one, sizeof one);
  };
  priority_.raise(number);
  SaveWriter::Written written;
  if (message.reports_written || events::is_heard()) {
    written = [this, message](const WrittenFiles& files) { report_written(message, files); };
  }
  auto started = SaveThread::start(order_, {std::move(report_end), std::move(written)},
                                   [this, number] { priority_.lower_with_thread(number); });
  if (!started) {
    priority_.lower(number);
    send(MessageKind::kEnded, {number, std::move(started).error()});
    return {};
  }
  *thread = started->get();
  if (ending_) (*started)->abandon(*ending_);
  saves_.emplace(number, std::move(*started));
  return {};
}

Result<void> WriterServer::handle_claim(const os::Message& message) {
  CAIRN_TRY_ASSIGN(ClaimMessage claim, decode_claim(message.bytes));
  SaveThread* const save = find(claim.save);
  if (save == nullptr) return {};
  save->claim(std::move(claim.request), [this, number = claim.save](Result<commit::SaveTicket> ticket) {
    OutcomeMessage claimed{number};
    if (ticket) {
      claimed.outcome = commit::encode_ticket(*ticket);
    } else {
      claimed.outcome = std::move(ticket).error();
    }
    send(MessageKind::kClaimed, claimed);
  });
  return {};
}

Result<void> WriterServer::handle_begin(const os::Message& message) {
  CAIRN_TRY_ASSIGN(BeginMessage begin, decode_begin(message.bytes));
  const auto arena = arenas_.find(begin.arena);
  if (arena == arenas_.end()) return no_such("an arena", begin.arena);
  // Saves use an arena one after another, and the arena's size changes only between saves. An arena still in use keeps
  // the old save's size; the new save, which broke the rule, then fails.
  if (arena->second.use_count() == 1) CAIRN_TRY(arena->second->remap());
  begin.request.layout = layouts_[begin.layout_slot];
  if (!begin.request.layout) return no_such("a layout", begin.layout_slot);
  begin.request.arena = arena->second;
  SaveThread* const save = find(begin.save);
  if (save == nullptr) return {};
  if (events::is_heard()) {
    const SaveRequest& request = begin.request;
    const std::lock_guard lock(events_mutex_);
    events_[begin.save] = events::Operation::begin(EventOperation::kSave,
                                                   {request.directory, request.place.rank, request.place.count}, true);
  }
  save->begin(std::move(begin.request));
  return {};
}

void WriterServer::send(MessageKind kind, const OutcomeMessage& message) {
  // A dead trainer receives nothing; other code detects the death.
  (void)socket_.send(static_cast<std::uint32_t>(kind), encode(message));
}

void WriterServer::report_written(const StartMessage& message, const WrittenFiles& written) {
  if (message.reports_written) {
    const std::string bytes = encode(WrittenMessage{message.save, written.bytes, written.time});
    (void)socket_.send(static_cast<std::uint32_t>(MessageKind::kWritten), bytes);
  }
  const std::lock_guard lock(events_mutex_);
  const auto found = events_.find(message.save);
  if (found != events_.end())
    found->second.step_of(written.process_id, EventKind::kWritten, written.time, written.bytes);
}

void WriterServer::tell_end(std::uint64_t save, const Result<commit::RankSaveReport>& result) {
  const std::lock_guard lock(events_mutex_);
  const auto found = events_.find(save);
  if (found == events_.end()) return;
  result ? found->second.end(EventKind::kCommitted, result->bytes_written) : found->second.fail(result.error());
  events_.erase(found);
}

void WriterServer::watch_saves() {
  const auto saves = saves_;  // a copy: a save given up leaves the map later
  for (const auto& [number, save] : saves) {
    save->tick(Clock::now());
    // A living trainer kills this process instead: once the save has ended the arena is free, and a hung thread must
    // not use the arena any more.
    if (trainer_lost_) save->judge();
  }
}

void WriterServer::send_progress() {
  if (trainer_lost_ || saves_.empty() || Clock::now() < next_progress_) return;
  next_progress_ = Clock::now() + kProgressInterval;
  ProgressMessage progress;
  for (const auto& [number, save] : saves_) progress.saves.push_back({number, save->progress()});
  send_at_once(progress);
}

void WriterServer::send_at_once(const ProgressMessage& progress) {
  // A trainer that does not read (a stopped process) must not block the server.
  (void)socket_.send_at_once(static_cast<std::uint32_t>(MessageKind::kProgress), encode(progress));
}

void WriterServer::drop_ended_saves() {
  std::vector<std::uint64_t> ended;
  {
    const std::lock_guard lock(ended_mutex_);
    ended.swap(ended_);
  }
  for (const std::uint64_t number : ended) {
    saves_.at(number)->join();
    saves_.erase(number);
  }
}

void WriterServer::lose_trainer(const Error& reason) {  // (4)
  trainer_lost_ = true;
  socket_.shut_down();  // releases threads that wait in send()
  ending_ = reason;
  for (const auto& [number, save] : saves_) save->abandon(reason);
}

void WriterServer::begin_to_end() {  // (5)
  if (grace_ends_) return;
  grace_ends_ = Clock::now() + grace_;
  ending_ = Error(ErrorCode::kCancelled, "the writer process (" + std::to_string(getpid()) + ") received SIGTERM");
  for (const auto& [number, save] : saves_) save->abandon(*ending_);
}

}  // namespace cairn::writer

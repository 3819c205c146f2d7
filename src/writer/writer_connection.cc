#include "writer/writer_connection.h"

#include <cairn/catalog.h>
#include <cairn/version.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "core/attempt.h"
#include "events/listeners.h"
#include "os/call_within.h"
#include "os/real_path.h"
#include "os/start_thread.h"
#include "writer/writer_executable.h"

namespace cairn::writer {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using Phase = commit::ProgressTracker::Phase;

constexpr milliseconds kPollMax{1000};
constexpr milliseconds kPollMin{10};
// How long to wait for a process that was asked to end or was killed. A process that hangs in the kernel is left alone
// after this time.
constexpr milliseconds kEndMax{5000};

// Like clean_up_dead_save(), but returns `reason` if memory runs out.
Error clean_up_without_throwing(const DeadSave& save, const Error& reason) {
  try {
    return clean_up_dead_save(save, reason);
  } catch (const std::exception&) {
    return reason;
  }
}

}  // namespace

Result<std::shared_ptr<WriterConnection>> WriterConnection::open(const ProcessWriterOptions& options) {
  CAIRN_TRY_ASSIGN(const std::string executable, find_writer_executable(options.executable));
  CAIRN_TRY_ASSIGN(auto ends, os::MessageSocket::make_pair());
  CAIRN_TRY_ASSIGN(os::ChildProcess child, os::ChildProcess::start(executable, {}, ends.second.get()));
  ends.second = os::Fd();
  // Owned by the writer, which closes the connection, and by the connection's saves.
  std::shared_ptr<WriterConnection> connection(new WriterConnection(options, std::move(ends.first), std::move(child)));
  HelloMessage hello;
  hello.cairn_version = kVersion;
  hello.trainer = getpid();
  hello.grace = options.grace;
  hello.priority = options.priority;
  // If the process is dead already, the connection's thread finds the cause.
  (void)connection->send(MessageKind::kHello, encode(hello));
  CAIRN_TRY_ASSIGN(connection->thread_, os::start_thread<std::thread>("to watch the writer process",
                                                                      [self = connection.get()] { self->listen(); }));
  return connection;
}

WriterConnection::~WriterConnection() {
  if (thread_.joinable()) close();
}

void WriterConnection::close() {
  std::vector<std::shared_ptr<Save>> saves;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [number, save] : saves_) saves.push_back(save);
  }
  for (const auto& save : saves) {
    abandon(*save, Error(ErrorCode::kCancelled, "the writer was closed before the bytes were staged"));
  }
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return saves_.empty() || lost_; });
  }
  socket_.shut_down();  // ends the thread
  if (thread_.joinable()) thread_.join();
}

bool WriterConnection::is_lost() const {
  const std::lock_guard lock(mutex_);
  return lost_.has_value();
}

Result<void> WriterConnection::send(MessageKind kind, std::string_view bytes) {
  return socket_.send(static_cast<std::uint32_t>(kind), bytes);
}

Result<std::shared_ptr<WriterConnection::Save>> WriterConnection::start(SaveWriter::Ended ended,
                                                                        SaveWriter::Written written) {
  const bool reports_written = written && events::has_subscriber();  // the process writes its own trace
  const std::lock_guard in_order(order_);
  auto save = std::make_shared<Save>();  // shared with its client
  {
    const std::lock_guard lock(mutex_);
    if (lost_) return *lost_;
    save->number = ++last_save_;
    save->ended = std::move(ended);
    save->written = std::move(written);
    save->deadlines.progress = options_.deadline;
    if (saves_.empty()) last_received_ = watched_;
    saves_.emplace(save->number, save);
  }
  // If the process is dead, the connection's thread ends the save.
  (void)send(MessageKind::kStart, encode(StartMessage{save->number, reports_written}));
  return save;
}

Result<std::string> WriterConnection::ask(Save& save, const std::function<Result<void>()>& send_request) {
  {
    const std::lock_guard lock(mutex_);
    if (lost_) return *lost_;
    if (save.over) return save.failure.value_or(Error(ErrorCode::kInvalidArgument, "a save that has ended"));
    save.answer.reset();
  }
  const Result<void> sent = send_request();
  std::unique_lock lock(mutex_);
  // An unreachable process is about to be lost. The loss then has an error with more detail.
  if (sent || sent.error().code() == ErrorCode::kUnavailable) {
    changed_.wait(lock, [&] { return save.answer || save.over || lost_; });
  }
  if (!sent && sent.error().code() != ErrorCode::kUnavailable) return sent.error();
  if (save.answer) return *std::exchange(save.answer, std::nullopt);
  if (lost_) return *lost_;
  if (save.failure) return *save.failure;
  return Error(ErrorCode::kUnavailable, "the writer process ended the save before it had begun");
}

Result<void> WriterConnection::prepare(const std::shared_ptr<staging::Arena>& arena) {
  const std::lock_guard in_order(order_);
  return sent_.send_arena(socket_, arena);
}

Result<commit::SaveTicket> WriterConnection::claim(Save& save, const ClaimRequest& request,
                                                   const std::function<void()>& meanwhile) {
  ClaimMessage message{save.number, request};
  message.request.directory = os::real_path(request.directory, request.deadlines.publish);
  {
    const std::lock_guard lock(mutex_);
    save.deadlines = request.deadlines;
    save.place =
        DeadSave{message.request.directory, request.identity.save_id, metadata_name(request.options.alone_as_rank)};
  }
  const auto send_claim = [&]() -> Result<void> {
    CAIRN_TRY(send(MessageKind::kClaim, encode(message)));
    if (meanwhile) meanwhile();
    return {};
  };
  CAIRN_TRY_ASSIGN(const std::string ticket, ask(save, send_claim));
  return commit::decode_ticket(ticket);
}

Result<void> WriterConnection::begin(Save& save, const SaveRequest& request) {
  BeginMessage message;
  message.save = save.number;
  message.request = request;
  message.request.directory = os::real_path(request.directory, request.deadlines.publish);
  message.request.arena.reset();
  message.request.layout.reset();
  message.arena = request.arena->id();
  std::optional<DeadSave> follows;
  if (!request.place.is_coordinator()) {
    follows = DeadSave{message.request.directory, request.ticket.identity.save_id, std::string(kMetadataName),
                       request.place.rank};
  }
  std::optional<Error> lost;
  {
    const std::lock_guard lock(mutex_);
    lost = lost_;
    if (!lost && save.over) return {};  // `ended` reports the outcome
    if (!lost) {
      save.arena = request.arena;
      save.deadlines = request.deadlines;
      if (follows) save.place = follows;
    }
  }
  if (lost) {
    // `ended` reports the outcome, as on all ranks. When the process was lost, the connection did not know this save's
    // directory yet: report the failure to the remaining ranks now.
    if (follows) (void)clean_up_dead_save(*follows, *std::move(lost));
    return {};
  }
  const auto send_all = [&]() -> Result<void> {
    const std::lock_guard in_order(order_);
    CAIRN_TRY(sent_.send_arena(socket_, request.arena));
    CAIRN_TRY_ASSIGN(message.layout_slot, sent_.send_layout(socket_, *request.layout));
    return send(MessageKind::kBegin, encode(message));
  };
  const Result<void> sent = send_all();
  // An unreachable process is about to be lost, and `ended` then reports an error with more detail.
  return sent || sent.error().code() == ErrorCode::kUnavailable ? Result<void>() : sent;
}

Result<void> WriterConnection::staged(Save& save) {
  {
    const std::lock_guard lock(mutex_);
    if (lost_) return *lost_;
    if (save.over || !save.arena) return Error(ErrorCode::kInvalidArgument, "bytes for a save that is not in flight");
    save.staged = true;
  }
  return send(MessageKind::kStaged, encode_number(save.number));
}

void WriterConnection::abandon(Save& save, const Error& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (save.over || save.staged || lost_) return;
  }
  (void)send(MessageKind::kAbandon, encode(OutcomeMessage{save.number, reason}));
}

commit::ProgressReport WriterConnection::progress(const Save& save) const {
  const std::lock_guard lock(mutex_);
  return save.progress;
}

void WriterConnection::listen() {
  bool silent = false;
  const Result<void> watched = attempt([&] { return watch(silent); });
  const Error reason = why_it_ended(watched ? std::nullopt : std::optional(watched.error()));
  socket_.close();  // close before `ended` is called: nothing is open by then
  lose(reason, silent);
  done_ = true;
}

Result<void> WriterConnection::watch(bool& silent) {
  const milliseconds poll_interval = std::clamp(options_.deadline / 8, kPollMin, kPollMax);
  Clock::time_point last_poll = Clock::now();
  while (true) {
    pollfd waiting{socket_.fd(), POLLIN, 0};
    (void)poll(&waiting, 1, static_cast<int>(poll_interval.count()));
    const Result<void> received = receive_all();
    if (socket_.has_ended()) return {};
    CAIRN_TRY(received);
    const auto now = Clock::now();
    {
      const std::lock_guard lock(mutex_);
      watched_ += std::min(std::chrono::duration_cast<milliseconds>(now - last_poll), 2 * poll_interval);
    }
    last_poll = now;
    if (std::optional<Error> found = find_timeout()) {
      silent = true;
      return *std::move(found);
    }
    // A thread that holds the lock sends messages, and may have to wait until the process reads.
    if (const std::unique_lock lock(order_, std::try_to_lock); lock.owns_lock()) sent_.forget_dropped_arenas(socket_);
  }
}

Result<void> WriterConnection::receive_all() {
  while (true) {
    CAIRN_TRY_ASSIGN(const std::optional<os::Message> message, socket_.receive());
    if (!message) return {};
    {
      const std::lock_guard lock(mutex_);
      last_received_ = watched_;
    }
    CAIRN_TRY(handle(*message));
  }
}

Result<void> WriterConnection::handle(const os::Message& message) {
  const auto kind = static_cast<MessageKind>(message.kind);
  if (kind == MessageKind::kProgress) {
    CAIRN_TRY_ASSIGN(const ProgressMessage progress, decode_progress(message.bytes));
    handle_progress(progress);
    return {};
  }
  if (kind == MessageKind::kWritten) {
    CAIRN_TRY_ASSIGN(const WrittenMessage written, decode_written_message(message.bytes));
    handle_written(written);
    return {};
  }
  CAIRN_TRY_ASSIGN(OutcomeMessage outcome, decode_outcome_message(message.bytes));
  switch (kind) {
    case MessageKind::kReady: {
      const std::lock_guard lock(mutex_);
      if (!outcome.outcome) refused_ = std::move(outcome.outcome).error();
      return {};
    }
    case MessageKind::kClaimed: handle_answer(std::move(outcome)); return {};
    case MessageKind::kEnded: handle_end(std::move(outcome)); return {};
    default: return Error(ErrorCode::kCorrupt, "a message of an unknown kind").actual(std::to_string(message.kind));
  }
}

void WriterConnection::handle_progress(const ProgressMessage& progress) {
  const std::lock_guard lock(mutex_);
  for (const auto& [number, report] : progress.saves) {
    const auto found = saves_.find(number);
    if (found == saves_.end()) continue;
    Save& save = *found->second;
    save.progress = report;
  }
}

void WriterConnection::handle_written(const WrittenMessage& message) {
  SaveWriter::Written report;
  {
    const std::lock_guard lock(mutex_);
    const auto found = saves_.find(message.save);
    if (found == saves_.end()) return;
    report = found->second->written;
  }
  if (report) report({message.bytes, message.time, child_.id()});
}

void WriterConnection::handle_answer(OutcomeMessage message) {
  const std::lock_guard lock(mutex_);
  const auto found = saves_.find(message.save);
  if (found == saves_.end()) return;
  found->second->answer = std::move(message.outcome);
  changed_.notify_all();
}

void WriterConnection::handle_end(OutcomeMessage message) {
  std::shared_ptr<Save> save;
  {
    const std::lock_guard lock(mutex_);
    const auto found = saves_.find(message.save);
    if (found == saves_.end()) return;
    save = found->second;
  }
  if (!message.outcome) {
    end_save(*save, std::move(message.outcome).error());
  } else {
    end_save(*save, decode_report(*message.outcome));
  }
}

void WriterConnection::end_save(Save& save, Result<commit::RankSaveReport> result) {
  const std::shared_ptr<Save> kept = [&] {
    const std::lock_guard lock(mutex_);
    save.over = true;
    if (!result) save.failure = result.error();
    save.progress.phase = Phase::kEnded;
    save.arena.reset();
    return saves_.at(save.number);
  }();
  std::exchange(save.ended, {})(std::move(result));
  const std::lock_guard lock(mutex_);
  saves_.erase(save.number);
  changed_.notify_all();
}

std::optional<Error> WriterConnection::find_timeout() {
  const std::lock_guard lock(mutex_);
  for (const auto& [number, save] : saves_) {
    const milliseconds silence_max = save->deadlines.progress;
    if (watched_ - last_received_ > silence_max) {
      return Error(ErrorCode::kUnavailable, "the writer process was killed: it sent no messages")
          .expected("one within " + std::to_string(silence_max.count()) + " ms");
    }
    std::optional<Error> stall = commit::stall_in(save->progress, save->deadlines);
    if (!stall) continue;
    stall = std::move(*stall).while_doing("saving; the writer process was killed");
    return save->place ? std::move(*stall).file(save->place->directory) : *std::move(stall);
  }
  return std::nullopt;
}

Error WriterConnection::why_it_ended(const std::optional<Error>& killed_for) {
  if (killed_for) child_.kill(SIGKILL);
  std::optional<os::ProcessEnd> end = child_.wait_for(kEndMax);
  if (!end) {
    child_.kill(SIGKILL);
    end = child_.wait_for(kEndMax);
  }
  if (killed_for) return *killed_for;
  const std::lock_guard lock(mutex_);
  if (refused_) return *refused_;
  const std::string how = end ? end->in_words() : "closed its socket, and hangs";
  return Error(ErrorCode::kUnavailable, "the writer process (" + std::to_string(child_.id()) + ") " + how);
}

void WriterConnection::lose(const Error& reason, bool storage_may_hang) {
  std::vector<std::shared_ptr<Save>> saves;
  {
    const std::lock_guard lock(mutex_);
    lost_ = reason;
    for (const auto& [number, save] : saves_) saves.push_back(save);
    changed_.notify_all();
  }
  for (const auto& save : saves) {
    // If the storage made the process hang, the storage would make this thread hang, too: the next save cleans up.
    std::optional<Error> ending;
    if (save->place && !storage_may_hang) {
      ending = os::call_within(save->deadlines.publish,
                               [place = *save->place, reason] { return clean_up_without_throwing(place, reason); });
    }
    end_save(*save, ending.value_or(reason));
  }
}

}  // namespace cairn::writer

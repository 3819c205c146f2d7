// WriterServer: the writer process: receives saves from its trainer by messages, and carries each save out on a thread.
// docs/writer-protocol.md describes the messages, and the behaviour of both processes when either dies.
#pragma once

#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "events/operation.h"
#include "os/fd.h"
#include "os/message_socket.h"
#include "staging/arena.h"
#include "writer/commit_order.h"
#include "writer/messages.h"
#include "writer/save_thread.h"
#include "writer/session_priority.h"

namespace cairn::writer {

class WriterServer {
 public:
  // `socket` is connected to the trainer. The caller has blocked signals in all threads.
  explicit WriterServer(os::Fd socket) : socket_(std::move(socket)) {}
  // Returns when no save is left and no trainer can request a save.
  Result<void> run();

 private:
  using Clock = std::chrono::steady_clock;

  Result<void> prepare();
  void wait();
  // Handles all messages that have arrived.
  Result<void> receive_messages();
  Result<void> handle(os::Message message);
  Result<void> handle_hello(const os::Message& message);
  Result<void> handle_arena(os::Message message);
  Result<void> handle_layout(os::Message message);
  Result<void> handle_claim(const os::Message& message);
  Result<void> handle_begin(const os::Message& message);
  Result<void> start_save(const StartMessage& message);
  void report_written(const StartMessage& message, const WrittenFiles& written);
  SaveThread* find(std::uint64_t save);
  void send(MessageKind kind, const OutcomeMessage& message);
  // Ends the save's events of this process, which go into the trace.
  void tell_end(std::uint64_t save, const Result<commit::RankSaveReport>& result);
  // Advances the age of the saves' calls into the storage. Without a trainer, gives up saves whose calls hang.
  void watch_saves();
  void send_progress();
  void send_at_once(const ProgressMessage& progress);
  void drop_ended_saves();
  // The trainer is dead or has disconnected: staged saves continue, all others are given up.
  void lose_trainer(const Error& reason);
  // Handles SIGTERM.
  void begin_to_end();

  os::MessageSocket socket_;
  os::Fd trainer_;  // readable when the trainer is dead; empty if the system cannot watch processes
  os::Fd signals_;
  os::Fd wake_;           // a save has ended
  pid_t trainer_id_ = 0;  // the parent
  // A program between trainer and this process: only the socket shows the trainer's death.
  bool has_parent_between_ = false;
  bool trainer_lost_ = false;
  bool greeted_ = false;
  SessionPriority priority_;
  std::chrono::milliseconds grace_{};
  std::optional<Clock::time_point> grace_ends_;  // set once SIGTERM has come
  std::optional<Error> ending_;                  // the reason why no save is accepted any more
  Clock::time_point next_progress_;

  CommitOrder order_;
  std::map<std::uint64_t, std::shared_ptr<staging::Arena>> arenas_;        // shared with saves
  std::array<std::shared_ptr<const StagedLayout>, kLayoutSlots> layouts_;  // shared with saves
  std::uint64_t last_save_ = 0;
  std::map<std::uint64_t, std::shared_ptr<SaveThread>> saves_;  // started, and not yet known to have ended
  std::mutex events_mutex_;
  std::map<std::uint64_t, events::Operation> events_;  // of the saves that have begun, if the process writes a trace
  std::mutex ended_mutex_;
  std::vector<std::uint64_t> ended_;  // numbers of saves; each save's thread is about to return
};

}  // namespace cairn::writer

// WriterServer: the writer process: takes saves from its trainer by messages and carries each out on a thread. What the
// two say to each other, and what happens when one of them dies, is docs/writer-protocol.md.
#pragma once

#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

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
  // The trainer's socket. Signals are blocked by then, in all threads.
  explicit WriterServer(os::Fd socket) : socket_(std::move(socket)) {}
  // Returns when there is nothing left to do, and nobody who could ask for more.
  Result<void> run();

 private:
  using Clock = std::chrono::steady_clock;

  Result<void> prepare();
  void wait();
  // Everything that has arrived.
  Result<void> receive_messages();
  Result<void> handle(os::Message message);
  Result<void> handle_hello(const os::Message& message);
  Result<void> handle_arena(os::Message message);
  Result<void> handle_claim(const os::Message& message);
  Result<void> handle_begin(const os::Message& message);
  Result<void> start_save(std::uint64_t save);
  SaveThread* find(std::uint64_t save);
  void send(MessageKind kind, const OutcomeMessage& message);
  // Lets their calls into the storage age. Without a trainer, those that hang are given up.
  void watch_saves();
  void send_progress();
  void send_at_once(const ProgressMessage& progress);
  void drop_ended_saves();
  // The trainer is dead, or has left: what is staged goes on, the rest is given up.
  void lose_trainer(const Error& reason);
  // SIGTERM.
  void begin_to_end();

  os::MessageSocket socket_;
  os::Fd trainer_;  // readable when it is dead; empty where the system can't watch it
  os::Fd signals_;
  os::Fd wake_;                      // a save has ended
  pid_t trainer_id_ = 0;             // the parent
  bool has_parent_between_ = false;  // a program that the trainer started started this one: only the socket can tell
  bool trainer_lost_ = false;
  bool greeted_ = false;
  SessionPriority priority_;
  std::chrono::milliseconds grace_{};
  std::optional<Clock::time_point> grace_ends_;  // once SIGTERM has come
  std::optional<Error> ending_;                  // why no save is taken any more
  Clock::time_point next_progress_;

  CommitOrder order_;
  std::map<std::uint64_t, std::shared_ptr<staging::Arena>> arenas_;        // owned by the saves that use them too
  std::array<std::shared_ptr<const StagedLayout>, kLayoutSlots> layouts_;  // owned by saves that begin too
  std::uint64_t last_save_ = 0;
  std::map<std::uint64_t, std::shared_ptr<SaveThread>> saves_;  // started, and not seen to have ended
  std::mutex ended_mutex_;
  std::vector<std::uint64_t> ended_;  // by their threads, which are about to return
};

}  // namespace cairn::writer

// WriterConnection: one writer process as the trainer sees it, from its start to its end, with the saves that it was
// given.
//
// Thread-safe. A thread of its own listens to the process, watches that it lives, and calls `ended` of each save. It is
// closed by its owner, who is not that thread.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "os/child_process.h"
#include "os/message_socket.h"
#include "writer/dead_save.h"
#include "writer/messages.h"
#include "writer/process_writer.h"
#include "writer/save_writer.h"
#include "writer/sent_state.h"

namespace cairn::writer {

class WriterConnection {
 public:
  // Starts the process; what it answers is heard later.
  static Result<std::shared_ptr<WriterConnection>> open(const ProcessWriterOptions& options);
  ~WriterConnection();
  WriterConnection(const WriterConnection&) = delete;
  WriterConnection& operator=(const WriterConnection&) = delete;

  pid_t process_id() const { return child_.id(); }
  // No more saves can be started.
  bool is_lost() const;
  // Its thread has nothing more to do: close() does not wait.
  bool is_done() const { return done_.load(); }
  // Abandons what is not staged, waits for what is, ends the process.
  void close();

  // A save on its way. All of it is the connection's, under its lock; others merely hold it.
  struct Save {
    std::uint64_t number = 0;
    SaveWriter::Ended ended;
    std::shared_ptr<staging::Arena> arena;      // owned by whoever staged too; kept until the end, when it is free
    std::optional<DeadSave> place;              // once it may have left something in the storage
    std::optional<Result<std::string>> answer;  // to the claim
    bool staged = false;
    bool over = false;
    std::optional<Error> failure;  // that it ended with
    commit::ProgressReport progress;
    SaveDeadlines deadlines;
  };

  // Sends the arena ahead of the saves that use it.
  Result<void> prepare(const std::shared_ptr<staging::Arena>& arena);
  // kUnavailable once the process is lost.
  Result<std::shared_ptr<Save>> start(SaveWriter::Ended ended);
  Result<commit::SaveTicket> claim(Save& save, const ClaimRequest& request, const std::function<void()>& meanwhile);
  Result<void> begin(Save& save, const SaveRequest& request);
  Result<void> staged(Save& save);
  // Of no effect once it is staged.
  void abandon(Save& save, const Error& reason);
  commit::ProgressReport progress(const Save& save) const;

 private:
  WriterConnection(const ProcessWriterOptions& options, os::Fd socket, os::ChildProcess child)
      : options_(options), socket_(std::move(socket)), child_(std::move(child)) {}
  void listen();
  // Until the socket ends, or with why the process is to be killed; `silent`: it may hang in the storage.
  Result<void> watch(bool& silent);
  Result<void> receive_all();
  Result<void> handle(const os::Message& message);
  void handle_progress(const ProgressMessage& progress);
  void handle_answer(OutcomeMessage message);
  void handle_end(OutcomeMessage message);
  // The error for which the process is to be killed, if there is one.
  std::optional<Error> find_timeout();
  Error why_it_ended(const std::optional<Error>& killed_for);
  // Ends all saves.
  void lose(const Error& reason, bool storage_may_hang);
  void end_save(Save& save, Result<commit::RankSaveReport> result);
  // Sends what asks for an answer, and waits for it.
  Result<std::string> ask(Save& save, const std::function<Result<void>()>& send);
  Result<void> send(MessageKind kind, std::string_view bytes);

  const ProcessWriterOptions options_;
  os::MessageSocket socket_;
  os::ChildProcess child_;  // its waiting is the thread's

  std::mutex order_;  // over what must be sent in the order of what it says
  SentState sent_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, std::shared_ptr<Save>> saves_;  // that have not ended; owned by their clients too
  std::uint64_t last_save_ = 0;
  std::optional<Error> lost_;
  std::optional<Error> refused_;  // the process answered the greeting with it
  // How long this process has watched that one, without the time in which it was stopped itself; and when it heard of
  // it.
  std::chrono::milliseconds watched_{};
  std::chrono::milliseconds last_received_{};

  std::atomic<bool> done_{false};
  std::thread thread_;
};

}  // namespace cairn::writer

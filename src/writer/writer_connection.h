// WriterConnection: the trainer's view of a writer process, from the process's start to its end, with the saves given
// to the process.
//
// Thread-safe. A thread of the connection receives the process's messages, watches the process, and calls `ended` of
// each save. The owner closes the connection, from another thread.
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
  // Starts the process; the connection's thread receives the answer to the greeting later.
  static Result<std::shared_ptr<WriterConnection>> open(const ProcessWriterOptions& options);
  ~WriterConnection();
  WriterConnection(const WriterConnection&) = delete;
  WriterConnection& operator=(const WriterConnection&) = delete;

  pid_t process_id() const { return child_.id(); }
  // No more saves can be started.
  bool is_lost() const;
  // The connection's thread has finished: close() does not wait.
  bool is_done() const { return done_.load(); }
  // Abandons saves that are not staged, waits for the end of staged saves, and ends the process.
  void close();

  // A save in flight. The connection owns every member, under its lock; clients only keep the object alive.
  struct Save {
    std::uint64_t number = 0;
    SaveWriter::Ended ended;
    SaveWriter::Written written;
    // Shared with the stager; kept until the save's end, when the arena is free.
    std::shared_ptr<staging::Arena> arena;
    std::optional<DeadSave> place;              // set once the save may have left files in the storage
    std::optional<Result<std::string>> answer;  // to the claim
    bool staged = false;
    bool over = false;
    std::optional<Error> failure;  // the error with which the save ended
    commit::ProgressReport progress;
    SaveDeadlines deadlines;
  };

  // Sends the arena before the first save that uses the arena.
  Result<void> prepare(const std::shared_ptr<staging::Arena>& arena);
  // kUnavailable once the process is lost.
  Result<std::shared_ptr<Save>> start(SaveWriter::Ended ended, SaveWriter::Written written);
  Result<commit::SaveTicket> claim(Save& save, const ClaimRequest& request, const std::function<void()>& meanwhile);
  Result<void> begin(Save& save, const SaveRequest& request);
  Result<void> staged(Save& save);
  // No effect once the save is staged.
  void abandon(Save& save, const Error& reason);
  commit::ProgressReport progress(const Save& save) const;

 private:
  WriterConnection(const ProcessWriterOptions& options, os::Fd socket, os::ChildProcess child)
      : options_(options), socket_(std::move(socket)), child_(std::move(child)) {}
  void listen();
  // Runs until the socket ends; or fails with the reason for which the process is to be killed. `silent`: the process
  // may hang in the storage.
  Result<void> watch(bool& silent);
  Result<void> receive_all();
  Result<void> handle(const os::Message& message);
  void handle_progress(const ProgressMessage& progress);
  void handle_written(const WrittenMessage& message);
  void handle_answer(OutcomeMessage message);
  void handle_end(OutcomeMessage message);
  // The reason for which the process is to be killed, or nullopt.
  std::optional<Error> find_timeout();
  Error why_it_ended(const std::optional<Error>& killed_for);
  // Ends all saves.
  void lose(const Error& reason, bool storage_may_hang);
  void end_save(Save& save, Result<commit::RankSaveReport> result);
  // Sends a request, and waits for the answer.
  Result<std::string> ask(Save& save, const std::function<Result<void>()>& send);
  Result<void> send(MessageKind kind, std::string_view bytes);

  const ProcessWriterOptions options_;
  os::MessageSocket socket_;
  os::ChildProcess child_;  // only the connection's thread waits for the child

  std::mutex order_;  // protects the order of messages that depend on each other
  SentState sent_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, std::shared_ptr<Save>> saves_;  // saves that have not ended; shared with their clients
  std::uint64_t last_save_ = 0;
  std::optional<Error> lost_;
  std::optional<Error> refused_;  // the process's error answer to the greeting
  // How long the connection has watched the writer process, without times in which the trainer was stopped; and the
  // value of `watched_` at the last message.
  std::chrono::milliseconds watched_{};
  std::chrono::milliseconds last_received_{};

  std::atomic<bool> done_{false};
  std::thread thread_;
};

}  // namespace cairn::writer

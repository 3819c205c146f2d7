#include "writer/process_writer.h"

#include <unistd.h>

#include <mutex>
#include <utility>
#include <vector>

#include "writer/writer_connection.h"

namespace cairn::writer {
namespace {

class ProcessSave final : public WriterSave {
 public:
  ProcessSave(std::shared_ptr<WriterConnection> connection, std::shared_ptr<WriterConnection::Save> save)
      : owned_(new Owned{std::move(connection), std::move(save)}) {}
  ~ProcessSave() override {
    if (is_of_a_fork()) {
      // In a child made by fork, the connection's thread does not exist and the locks may be held for ever.
      (void)owned_.release();
      return;
    }
    abandon(Error(ErrorCode::kCancelled, "the save was dropped before its bytes were staged"));
  }
  ProcessSave(const ProcessSave&) = delete;
  ProcessSave& operator=(const ProcessSave&) = delete;

  Result<commit::SaveTicket> claim(const ClaimRequest& request, const std::function<void()>& meanwhile) override {
    if (is_of_a_fork()) return of_a_fork();
    return owned_->connection->claim(*owned_->save, request, meanwhile);
  }
  Result<void> begin(const SaveRequest& request) override {
    return is_of_a_fork() ? Result<void>(of_a_fork()) : owned_->connection->begin(*owned_->save, request);
  }
  Result<void> staged() override {
    return is_of_a_fork() ? Result<void>(of_a_fork()) : owned_->connection->staged(*owned_->save);
  }
  void abandon(const Error& reason) override {
    if (!is_of_a_fork()) owned_->connection->abandon(*owned_->save, reason);
  }
  commit::ProgressReport progress() const override {
    return is_of_a_fork() ? commit::ProgressReport() : owned_->connection->progress(*owned_->save);
  }

 private:
  static Error of_a_fork() {
    return Error(ErrorCode::kUnavailable,
                 "this process is a forked child; the save belongs to its parent: make a new save here");
  }
  bool is_of_a_fork() const { return getpid() != process_; }

  struct Owned {
    std::shared_ptr<WriterConnection> connection;  // owned by the writer too, which closes the connection
    std::shared_ptr<WriterConnection::Save> save;  // owned by the connection too, until the save has ended
  };
  pid_t process_ = getpid();
  std::unique_ptr<Owned> owned_;
};

}  // namespace

struct ProcessWriter::State {
  pid_t process = getpid();
  std::mutex mutex;
  std::shared_ptr<WriterConnection> current;  // shared with the connection's saves, like the lost connections
  std::vector<std::shared_ptr<WriterConnection>> lost;

  // Returns a connection that is not lost. The caller holds the lock.
  Result<std::shared_ptr<WriterConnection>> connect(const ProcessWriterOptions& options) {
    if (current && current->is_lost()) lost.push_back(std::move(current));
    close_lost();
    if (!current) {
      CAIRN_TRY_ASSIGN(current, WriterConnection::open(options));
    }
    return current;
  }

  // Closes lost connections whose thread has ended. A running thread may still be calling `ended` of the connection's
  // saves, and may even be the thread now starting a save. The caller holds the lock.
  void close_lost() {
    std::erase_if(lost, [](const std::shared_ptr<WriterConnection>& connection) {
      if (!connection->is_done()) return false;
      connection->close();
      return true;
    });
  }
};

ProcessWriter::ProcessWriter(ProcessWriterOptions options) : options_(std::move(options)), state_(new State) {}

ProcessWriter::~ProcessWriter() {
  std::unique_ptr<State> own(state_.load());
  if (own->process != getpid()) {
    (void)own.release();
    return;
  }
  for (const auto& connection : own->lost) connection->close();
  if (own->current) own->current->close();
}

ProcessWriter::State& ProcessWriter::state() const {
  State* found = state_.load();
  if (found->process == getpid()) return *found;
  // The parent's state stays untouched: the locks may be held for ever by threads of the parent.
  auto own = std::make_unique<State>();
  if (state_.compare_exchange_strong(found, own.get())) return *own.release();
  return *found;  // a second thread of this process was faster
}

Result<void> ProcessWriter::start_process() {
  State& own = state();
  const std::lock_guard lock(own.mutex);
  CAIRN_TRY(own.connect(options_));
  return {};
}

Result<void> ProcessWriter::prepare(const std::shared_ptr<staging::Arena>& arena) {
  State& own = state();
  const std::lock_guard lock(own.mutex);
  CAIRN_TRY_ASSIGN(const auto connection, own.connect(options_));
  return connection->prepare(arena);
}

std::optional<pid_t> ProcessWriter::process_id() const {
  State& own = state();
  const std::lock_guard lock(own.mutex);
  if (!own.current || own.current->is_lost()) return std::nullopt;
  return own.current->process_id();
}

Result<std::unique_ptr<WriterSave>> ProcessWriter::start(Ended ended, Written written) {
  State& own = state();
  const std::lock_guard lock(own.mutex);
  CAIRN_TRY_ASSIGN(auto connection, own.connect(options_));
  auto save = connection->start(ended, written);
  if (!save) {  // the connection was lost just now
    CAIRN_TRY_ASSIGN(connection, own.connect(options_));
    save = connection->start(std::move(ended), std::move(written));
    if (!save) return std::move(save).error();
  }
  return std::unique_ptr<WriterSave>(std::make_unique<ProcessSave>(std::move(connection), std::move(*save)));
}

}  // namespace cairn::writer

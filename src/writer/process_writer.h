// ProcessWriter: carries out saves in a separate process, `cairn-writer`, which outlives this process: staged bytes
// become a checkpoint even if this process is killed right after staging.
//
// The first save starts the process; the process serves all later saves. If the process dies, its saves fail with
// kUnavailable, their leftovers in the storage are removed as far as removing is safe, and the next save starts a new
// process. A child made by fork has no part in its parent's saves (calls on the parent's saves fail with kUnavailable),
// and may start saves of its own.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "os/priority.h"
#include "writer/save_writer.h"

namespace cairn::writer {

struct ProcessWriterOptions {
  std::string executable = {};  // empty: find_writer_executable() (writer_executable.h)
  // The time that staged saves get after the writer process has received SIGTERM.
  std::chrono::milliseconds grace{std::chrono::seconds(30)};
  os::Priority priority = {};
  // The writer process is killed if no message arrives for this long while a save is in flight. Once a save has a
  // request, the request's deadlines count instead; a call into the storage that exceeds the request's deadlines also
  // kills the process.
  std::chrono::milliseconds deadline{std::chrono::minutes(5)};
};

class ProcessWriter final : public SaveWriter {
 public:
  explicit ProcessWriter(ProcessWriterOptions options = {});
  // Abandons saves that are not staged, waits for the end of staged saves, and then for the end of the process. Must
  // not be called from within `ended`.
  ~ProcessWriter() override;
  ProcessWriter(const ProcessWriter&) = delete;
  ProcessWriter& operator=(const ProcessWriter&) = delete;

  // Starts the process before the first save, and sends the arena; does not wait until the process is ready.
  Result<void> prepare(const std::shared_ptr<staging::Arena>& arena) override;
  // Like prepare(), without an arena.
  Result<void> start_process();
  // The process of the last start() or start_process(); nullopt if there is none, or if the process has ended.
  std::optional<pid_t> process_id() const;

  Result<std::unique_ptr<WriterSave>> start(Ended ended, Written written = {}) override;

 private:
  struct State;
  State& state() const;

  ProcessWriterOptions options_;
  // Owned; a child made by fork leaves the parent's state alone and makes its own state.
  mutable std::atomic<State*> state_;
};

}  // namespace cairn::writer

// ProcessWriter: carries out saves in a process of its own, `cairn-writer`, which outlives this one: what is staged
// becomes a checkpoint even if this process is killed right after.
//
// The process is started by the first save, serves all that follow, and is started anew when it died. Its saves then
// fail with kUnavailable, and what they left in the storage is removed as far as that is safe. A child made by fork has
// no part in its parent's saves (their calls fail with kUnavailable); it may start saves of its own.
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
  // What is staged when SIGTERM comes to the writer has so long.
  std::chrono::milliseconds grace{std::chrono::seconds(30)};
  os::Priority priority = {};
  // Without a sign of life for so long the writer is killed; also if a save writes nothing, its request's deadline
  // long.
  std::chrono::milliseconds deadline{std::chrono::minutes(5)};
};

class ProcessWriter final : public SaveWriter {
 public:
  explicit ProcessWriter(ProcessWriterOptions options = {});
  // Abandons what is not staged, waits for the end of what is, and then for the process's. Not from within `ended`.
  ~ProcessWriter() override;
  ProcessWriter(const ProcessWriter&) = delete;
  ProcessWriter& operator=(const ProcessWriter&) = delete;

  // Starts the process, ahead of the first save, and gives it the arena; does not wait until it is ready.
  Result<void> prepare(const std::shared_ptr<staging::Arena>& arena) override;
  // Without an arena.
  Result<void> start_process();
  // Of the process that the last start() or start_process() used; nullopt if there is none, or it has ended.
  std::optional<pid_t> process_id() const;

  Result<std::unique_ptr<WriterSave>> start(Ended ended) override;

 private:
  struct State;
  State& state() const;

  ProcessWriterOptions options_;
  mutable std::atomic<State*> state_;  // owned; a child made by fork leaves its parent's alone and makes its own
};

}  // namespace cairn::writer

// ThreadWriter: carries out saves in threads of this process.
//
// A save waiting for the turn to commit keeps a thread: the writer has as many threads as saves in flight. Another
// thread, which never calls the storage, watches the saves: if the storage hangs, the save is given up, and the save's
// thread left alone. A child made by fork has none of the threads: in the child every call fails with kUnavailable, and
// the destructor does nothing.
#pragma once

#include <sys/types.h>

#include <memory>
#include <mutex>
#include <vector>

#include "os/priority.h"
#include "writer/commit_order.h"
#include "writer/save_thread.h"
#include "writer/save_writer.h"

namespace cairn::writer {

class ThreadWriter final : public SaveWriter {
 public:
  // `priority` is the priority of the writing threads.
  explicit ThreadWriter(const os::Priority& priority = {}, OpenDirectory open = open_or_make_directory);
  // Abandons saves that are not staged, and waits until each staged save has ended or was given up. Must not be called
  // from within `ended`.
  ~ThreadWriter() override;
  ThreadWriter(const ThreadWriter&) = delete;
  ThreadWriter& operator=(const ThreadWriter&) = delete;

  Result<std::unique_ptr<WriterSave>> start(Ended ended, Written written = {}) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cairn::writer

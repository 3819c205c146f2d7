// ThreadWriter: carries out saves in threads of this process.
//
// A save that waits for its turn to commit holds its thread, so there are as many as saves under way. One more thread,
// which never calls the storage, watches them: a save whose storage hangs is given up, and its thread left alone. After
// a fork the child has none of them: there, every call fails with kUnavailable, and destroying the writer does nothing.
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
  // `priority` is that of its threads.
  explicit ThreadWriter(const os::Priority& priority = {}, OpenDirectory open = open_or_make_directory);
  // Abandons what is not staged, and waits until what is has ended or was given up. Not from within `ended`.
  ~ThreadWriter() override;
  ThreadWriter(const ThreadWriter&) = delete;
  ThreadWriter& operator=(const ThreadWriter&) = delete;

  Result<std::unique_ptr<WriterSave>> start(Ended ended) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cairn::writer

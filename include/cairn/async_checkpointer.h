// AsyncCheckpointer: saves in the background. The caller waits for one copy of its bytes, or not even for that; what is
// copied becomes a durable checkpoint by itself.
//
// 1. The ranks agree: the coordinator claims the directory, and all plan together, unless the state is built as
//    the last one was. Two collectives, or one.
// 2. The tensors are copied into an arena, memory laid out as the files will be.
// 3. A writer completes, writes, syncs and commits the files. It may be a process of its own: it then does so even if
//    this one is killed. Nothing is sent between ranks any more: they meet in the storage, so all must see one
//    directory.
//
// Thread-safe, but for what a function says; with collectives, all ranks call in the same order.
#pragma once

#include <cairn/catalog.h>
#include <cairn/checkpoint.h>
#include <cairn/result.h>
#include <cairn/save_progress.h>
#include <cairn/state_dict.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

namespace cairn {

struct CheckpointStagerOptions {
  std::size_t generations = 2;   // arenas at most: a save that finds all of them busy waits for the oldest
  std::size_t thread_count = 0;  // that copy; 0: one for each core that this process may use, at most 8
  // Before an arena takes memory, the limits of this process's memory cgroups, and the memory of the machine, are
  // looked at. Where they leave no room, a save waits for an earlier one to give its arena back. It fails with kNoSpace
  // if that would not be enough, and if other ranks or a writer wait for this rank meanwhile, also after a third of
  // SaveDeadlines::progress. false: memory is taken until the kernel ends a process.
  bool heed_memory_limits = true;
};

// The memory for staged bytes, kept from save to save. One stager may serve several checkpointers.
class CheckpointStager {
 public:
  static std::shared_ptr<CheckpointStager> make(const CheckpointStagerOptions& options = {});
  ~CheckpointStager();
  // Arenas that there are.
  std::size_t arena_count() const;

  struct Impl;  // the library's own
  explicit CheckpointStager(std::unique_ptr<Impl> impl);
  Impl& impl() const noexcept { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

struct CheckpointProcessOptions {
  std::filesystem::path executable = {};  // empty: `cairn-writer` beside this library or program, or $CAIRN_WRITER
  // After a SIGTERM the writer finishes what is staged, but not longer than this.
  std::chrono::milliseconds grace{std::chrono::seconds(30)};
  // 0 to 19, added to the niceness of the threads that write, and of the writer's session: they stand back behind the
  // training, from when it does not wait for its bytes to be copied any more.
  int nice = 10;
  enum class IoPriority : std::uint8_t { kInherited, kLow, kIdle };
  IoPriority io_priority = IoPriority::kInherited;
};

// The writer process, `cairn-writer`: started when it is first needed, and again if it died. It runs in a session of
// its own, has the arenas by their descriptors, and ends when there is nothing left to do and this process is gone.
class CheckpointProcess {
 public:
  static std::shared_ptr<CheckpointProcess> make(const CheckpointProcessOptions& options = {});
  ~CheckpointProcess();  // waits for the end of what is staged, and of the process
  // Starts it now if it does not run. kUnavailable if it can't be found or started; whether it works, the first save
  // tells.
  Result<void> start();
  // 0 if it does not run.
  std::int64_t pid() const;

  struct Impl;  // the library's own
  explicit CheckpointProcess(std::unique_ptr<Impl> impl);
  Impl& impl() const noexcept { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

struct AsyncSaveOptions {
  SaveOptions save;
  // The call returns before the bytes are copied: the state, and the memory behind it, stay as they are until the
  // staging future is ready.
  bool asynchronous_staging = false;
  // With asynchronous staging: samples of every tensor are read before the call returns and compared with its copy. A
  // save that would mix two states fails with kInvalidArgument and names the keys. A write to a whole tensor is
  // noticed, a write to a few of its elements may not be. Of each tensor, 32 bytes per MiB are compared, and at
  // least 32.
  bool torn_snapshot_alarm = true;
  // With asynchronous staging: called on the copying thread when everything is copied and before the writer may commit.
  // An error fails the save. For owners of the memory who can tell whether it was taken away meanwhile.
  std::function<Result<void>()> confirm_sources = {};
};

struct AsyncSaveReport {
  SaveId save_id;
  // Renders the pickle of `.metadata`, from any thread; null on ranks that do not coordinate: they may read the
  // directory.
  std::function<std::string()> render_metadata;
  // What it says. kInvalidArgument where there is none.
  Result<Catalog> catalog() const;

  std::uint64_t bytes_written = 0;  // by this rank
  std::vector<std::string> warnings;
};

// A save under way. Copies are the same save; dropping them does not stop it.
struct AsyncSave {
  std::shared_future<Result<void>> staging;           // ready: the state may change again
  std::shared_future<Result<AsyncSaveReport>> write;  // ready: durable and in place, or why it is not
  std::function<SaveProgress()> progress;             // from any thread
};

struct AsyncCheckpointerOptions {
  std::shared_ptr<CheckpointStager> stager = nullptr;    // null: one of its own
  std::shared_ptr<CheckpointProcess> process = nullptr;  // null: threads of this process, which die with it
  // false: a save first waits for the one before, and fails with its error. true: saves into different directories
  // overlap, those into one directory commit in their order, and errors are left to their futures.
  bool overlap = false;
  int nice = 10;  // of the threads that write, if there is no process: added to this one's, as there
};

class AsyncCheckpointer {
 public:
  explicit AsyncCheckpointer(AsyncCheckpointerOptions options = {});
  // Waits until everything is staged; with threads of this process as the writer, until it is written. In a child made
  // by fork: does nothing.
  ~AsyncCheckpointer();
  AsyncCheckpointer(AsyncCheckpointer&&) noexcept;
  AsyncCheckpointer& operator=(AsyncCheckpointer&&) noexcept;

  // Returns when the state may change again, or at once if asked to. What fails until then fails the call, on every
  // rank; what fails later is in the write future of every rank. Of `options.save` all counts. One thread at a time.
  Result<AsyncSave> save(const std::filesystem::path& directory, const StateDict& state,
                         const AsyncSaveOptions& options = {});
  // For a rank that has no state: takes its part in a save of all ranks with `reason` instead. Returns what all get.
  Error abandon_save(const Error& reason, const AsyncSaveOptions& options);
  // Makes memory for a state like this one, and the writer, ready, so that the first save is as quick as any. Looks at
  // shapes alone. May run in another thread than the saves.
  Result<void> prepare(const StateDict& state, const std::function<bool()>& interrupted = {});
  // As cairn::load, at once.
  Result<LoadReport> load(const std::filesystem::path& directory, StateDict& state, const LoadOptions& options = {});
  // Waits for what is under way and reports the first error that nobody was told. Saves are refused afterwards.
  Result<void> close();
  // For a program that ends now and waits for nothing: what is under way, and its memory, is left as it is. A process
  // finishes what is staged; threads end with the program. Nothing but the destructor may be called afterwards.
  void detach() noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The same shape for those who wait: saves are on disk when save() returns.
class SyncCheckpointer {
 public:
  Result<SaveReport> save(const std::filesystem::path& directory, const StateDict& state,
                          const SaveOptions& options = {}) {
    return cairn::save(directory, state, options);
  }
  Result<LoadReport> load(const std::filesystem::path& directory, StateDict& state, const LoadOptions& options = {}) {
    return cairn::load(directory, state, options);
  }
};

}  // namespace cairn

// AsyncCheckpointer: saves in the background. The caller waits only for a copy of its bytes, or not at all. The copy
// becomes a durable checkpoint without the caller.
//
// 1. The ranks agree: the coordinator claims the directory, and all ranks plan together, unless the state is built like
//    an earlier state. Three collectives, or a single collective.
// 2. The tensors are copied into an arena: memory with the layout of the files.
// 3. A writer completes, writes, syncs and commits the files. A writer process does so even if this process is killed.
//    The ranks' writers exchange no messages and meet in the storage: all ranks need a common directory.
//
// Thread-safe, with the exceptions noted at the functions. With collectives, all ranks make their calls in the same
// order.
#pragma once

#include <cairn/catalog.h>
#include <cairn/checkpoint.h>
#include <cairn/options.h>
#include <cairn/result.h>
#include <cairn/save.h>
#include <cairn/state_dict.h>
#include <cairn/tensor.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace cairn {

struct CheckpointStagerOptions {
  std::size_t generations = 2;  // the greatest number of arenas: if all are busy, a save waits for the oldest
  // true: before an arena takes memory, the stager checks the limits of this process's memory cgroups, and the memory
  // of the machine. Without room, a save waits until an earlier save gives its arena back. The save fails with kNoSpace
  // if the arena's memory would not be enough. If other ranks or a writer wait for this rank meanwhile, the save also
  // fails after a third of SaveDeadlines::progress. false: memory is taken until the kernel ends a process.
  bool heed_memory_limits = true;
};

// The memory for staged bytes, kept from save to save. A stager may serve several checkpointers.
class CheckpointStager {
 public:
  static std::shared_ptr<CheckpointStager> make(const CheckpointStagerOptions& options = {});
  ~CheckpointStager();
  // The number of existing arenas.
  std::size_t arena_count() const;
  // The memory of the arenas that no save uses, in bytes.
  std::uint64_t free_bytes() const;

  struct Impl;  // the library's own
  explicit CheckpointStager(std::unique_ptr<Impl> impl);
  Impl& impl() const noexcept { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

struct CheckpointProcessOptions {
  std::filesystem::path executable = {};  // empty: `cairn-writer` beside this library or program, or $CAIRN_WRITER
  // The longest time for staged saves after a SIGTERM to the writer.
  std::chrono::milliseconds grace{std::chrono::seconds(30)};
  // 0 to 19, added to the niceness of the writing threads and of the writer's session. The niceness takes effect when
  // the trainer no longer waits for the copy of its bytes.
  int nice = 10;
  enum class IoPriority : std::uint8_t { kInherited, kLow, kIdle };
  IoPriority io_priority = IoPriority::kInherited;
};

// The writer process, `cairn-writer`. The first save starts the process, and a save after the process's death starts a
// new process. The process runs in a session of its own, and holds the arenas by their descriptors. The process ends
// when all saves have ended and this process is gone.
class CheckpointProcess {
 public:
  static std::shared_ptr<CheckpointProcess> make(const CheckpointProcessOptions& options = {});
  ~CheckpointProcess();  // waits for the end of the staged saves, and of the process
  // Starts the process if no process runs. kUnavailable if the program can't be found or started. A program that starts
  // but does not work fails the first save.
  Result<void> start();
  // 0 if no process runs.
  std::int64_t pid() const;

  struct Impl;  // the library's own
  explicit CheckpointProcess(std::unique_ptr<Impl> impl);
  Impl& impl() const noexcept { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

// A file of a save of files (AsyncSaveOptions::files). `tensor_count` tensors of the state belong to the file, in
// order.
struct SavedFile {
  std::string name;  // without a folder; unique among the files of all ranks
  // true: a file of torch.save, with `bytes` as its pickle, which names the storage of tensor i by the key "i". false:
  // `bytes`, and behind them the bytes of the tensors, without gaps.
  bool is_torch_save = false;
  std::string bytes;
  std::size_t tensor_count = 0;
};

struct AsyncSaveOptions {
  SaveOptions save;  // `safetensors` and `before_commit` are refused (kUnsupported)
  // true: the call returns before the copy. The state and its memory must stay unchanged until the staging future is
  // ready.
  bool asynchronous_staging = false;
  // With asynchronous staging: samples of every tensor are read before the call returns, and compared with the copy of
  // the tensor. A save that would mix two states fails with kInvalidArgument and names the keys. The samples show a
  // write to a whole tensor, and may miss a write to a few elements. A sample has 32 bytes; a tensor has a sample per
  // MiB, and at least a single sample.
  bool torn_snapshot_alarm = true;
  // With asynchronous staging: called on the copying thread after the copy, and before the writer may commit. An error
  // fails the save. For owners of the memory that can detect a change of the memory's owner or address meanwhile.
  std::function<Result<void>()> confirm_sources = {};
  // Set: the save writes no DCP checkpoint, but these files of this rank, in the form of Meta's torch_checkpointing.
  // The directory gets its name when the files of all ranks are complete and synced; an old directory at the name is
  // exchanged with the new one in one step, and then removed. The state holds the files' tensors and no value. A hidden
  // file of the directory names the save and its files. kInvalidArgument if the directory at the name holds other files
  // than a checkpoint of torch_checkpointing, kUnsupported if its file system can't exchange directories. Of `save` the
  // options of the layout and of `.metadata` are not used.
  std::optional<std::vector<SavedFile>> files = {};
};

struct AsyncSaveReport {
  SaveId save_id;
  // Renders `.metadata` without its commit record, from any thread. Null on all ranks but the coordinator: the
  // remaining ranks may read the directory.
  std::function<Result<std::string>()> render_metadata;
  // The catalog of the rendered pickle. kInvalidArgument if render_metadata is null.
  Result<Catalog> catalog() const;

  std::uint64_t bytes_written = 0;  // by this rank
  std::vector<std::string> warnings;
};

// A handle of a save in flight. Copies are handles of the same save; dropping all handles does not stop the save.
struct AsyncSave {
  std::shared_future<Result<void>> staging;           // ready: the state may change again
  std::shared_future<Result<AsyncSaveReport>> write;  // ready: the checkpoint is durable and in place, or an error
  std::function<SaveProgress()> progress;             // from any thread
  // Makes the stream of a device (Device::stream) wait for the copies out of the tensors: work that the caller queues
  // on the stream afterwards may overwrite the tensors, also before `staging` is ready. Waits on the calling thread
  // only until devices have all of their copies in their queues, and until all copies by the CPU are done; false after
  // `timeout`. Device{}: waits alone. kInvalidArgument if the stream is being captured into a graph. From any thread.
  std::function<Result<bool>(const Device& device, std::chrono::milliseconds timeout)> fence;
};

struct AsyncCheckpointerOptions {
  std::shared_ptr<CheckpointStager> stager = nullptr;    // null: a stager of the checkpointer's own
  std::shared_ptr<CheckpointProcess> process = nullptr;  // null: threads of this process, which die with the process
  // false: a save first waits for the save before, and fails with the error of the save before. true: saves into
  // different directories overlap, saves into a common directory commit in the order of the calls, and an error is only
  // in the future of its save.
  bool overlap = false;
  int nice = 10;  // of the writing threads, if `process` is null: added to this process's niceness
};

class AsyncCheckpointer {
 public:
  explicit AsyncCheckpointer(AsyncCheckpointerOptions options = {});
  // Waits until all saves are staged; with threads of this process as the writer, until all saves are written. In a
  // child made by fork: does nothing.
  ~AsyncCheckpointer();
  AsyncCheckpointer(AsyncCheckpointer&&) noexcept;
  AsyncCheckpointer& operator=(AsyncCheckpointer&&) noexcept;

  // Returns when the state may change again; with asynchronous staging, before the copy. A failure before the return
  // fails the call, on every rank; a later failure is in the write future of every rank. Uses all of `options.save`.
  // One thread at a time.
  Result<AsyncSave> save(const std::filesystem::path& directory, const StateDict& state,
                         const AsyncSaveOptions& options = {});
  // For a rank without a state: takes part in the save of all ranks with `reason`. Returns the error of all ranks.
  Error abandon_save(const Error& reason, const AsyncSaveOptions& options);
  // Allocates memory for a state like `state`, and starts the writer: the first save is then as quick as later saves.
  // Reads only shapes and dtypes. May run beside save() in a second thread.
  Result<void> prepare(const StateDict& state, const std::function<bool()>& interrupted = {});
  // Begins to prepare for a first save whose state is not known yet: a thread at low priority makes `bytes` of an arena
  // present, starts the writer, and returns the arena to the stager. Does nothing after the first save with the stager.
  // The first save does not wait for the preparation: it takes over the pages so far. The preparation leaves at least
  // half of `bytes` and 256 MiB within the memory limits, and stops early otherwise. The thread frees the memory when
  // less than half of that room is left, or if no save has come within `idle_max`. A second call replaces the earlier
  // preparation. kUnavailable without a thread. One thread at a time, and not beside close().
  Result<void> prepare_ahead(std::uint64_t bytes, std::chrono::milliseconds idle_max = std::chrono::minutes(30));
  // The memory, for another checkpointer of this process. Null after detach().
  std::shared_ptr<CheckpointStager> stager() const;
  // Calls cairn::load, without waiting for saves in flight.
  Result<LoadReport> load(const std::filesystem::path& directory, StateDict& state, const LoadOptions& options = {}) {
    return cairn::load(directory, state, options);
  }
  // Waits for the saves in flight and returns the first unreported error. Saves are refused afterwards.
  Result<void> close();
  // For a program that ends without waiting: leaves the saves in flight and their memory alone. A writer process
  // finishes the staged saves; threads end with the program. Afterwards only the destructor may be called.
  void detach() noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The interface of AsyncCheckpointer for blocking saves: when save() returns, the checkpoint is on disk.
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

#include <cairn/async_checkpointer.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "format/dcp/metadata_decoder.h"
#include "os/parallel.h"
#include "os/start_thread.h"
#include "save/async_save_operation.h"
#include "save/directory_save.h"
#include "staging/arena_preparation.h"
#include "writer/process_writer.h"
#include "writer/thread_writer.h"

namespace cairn {
namespace {

constexpr std::chrono::milliseconds kPollInterval{20};
constexpr std::uint64_t kPreparedAtATime = 32 * 1024 * 1024;
constexpr int kPreparationNice = 10;

std::string saving_to(const std::filesystem::path& directory) { return "saving to '" + directory.string() + "'"; }

// Threads that carry out one function each.
class Background {
 public:
  ~Background() { join_all(); }

  // kUnavailable if no thread can be started; then `work` was not called.
  Result<void> run(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    threads_.remove_if([](const std::unique_ptr<Task>& task) { return task->done.load(); });
    std::list<std::unique_ptr<Task>> started;
    Task& task = *started.emplace_back(std::make_unique<Task>());
    auto copy = [&task, work = std::move(work)]() mutable {
      work();
      work = nullptr;  // frees the captured objects now, not at the next save
      task.done = true;
    };
    CAIRN_TRY_ASSIGN(task.thread, os::start_thread<std::jthread>("to copy in the background", std::move(copy)));
    threads_.splice(threads_.end(), started);
    return {};
  }

  void join_all() {
    const std::lock_guard lock(mutex_);
    threads_.clear();
  }

 private:
  struct Task {
    std::atomic<bool> done{false};
    std::jthread thread;  // last: joined before `done` is destroyed
  };
  std::mutex mutex_;
  std::list<std::unique_ptr<Task>> threads_;
};

// The kernel provides new pages more slowly than threads fill pages, so several threads request the pages.
Result<void> make_all_present(staging::Arena& arena, const std::function<bool()>& interrupted) {
  const std::uint64_t bytes = arena.bytes().size();
  std::atomic<std::uint64_t> next{0};
  const auto work = [&](std::size_t, os::StopFlag& stop) -> Result<void> {
    while (!stop.is_set()) {
      const std::uint64_t begin = next.fetch_add(kPreparedAtATime);
      if (begin >= bytes) break;
      CAIRN_TRY(arena.make_present(begin, std::min(kPreparedAtATime, bytes - begin), os::PageSize::kHuge));
    }
    return {};
  };
  CAIRN_TRY(os::run_parallel(os::useful_thread_count(), interrupted, work));
  arena.note_present(bytes);
  return {};
}

// Registers the arena, and a buffer of each device for samples, with the driver of the state's devices. Without the
// registration copies take a detour, so a refusal of the driver is no failure.
Result<void> register_for(const StateDict& state, staging::Arena& arena, device::Links& links,
                          const std::function<bool()>& interrupted) {
  std::vector<device::Link*> used;
  for (const Entry& entry : state.entries()) {
    const auto* const tensor = std::get_if<TensorEntry>(&entry.content);
    if (tensor == nullptr || tensor->local.device.is_cpu()) continue;
    const Device& device = tensor->local.device;
    CAIRN_TRY_ASSIGN(device::Link* const link, links.to(device.kind, device.ordinal));
    if (std::find(used.begin(), used.end(), link) != used.end()) continue;
    used.push_back(link);
    (void)link->buffers().borrow();
  }
  if (used.empty()) return {};
  constexpr int kPauseShare = 1;
  device::Link& first = *used.front();
  (void)arena.begin_registration(first.driver(), first.ordinal())->register_all(interrupted, kPauseShare);
  if (interrupted && interrupted()) return Error(ErrorCode::kCancelled, "interrupted by the caller");
  return {};
}

writer::ProcessWriterOptions options_of(const CheckpointProcessOptions& options) {
  writer::ProcessWriterOptions result;
  result.executable = options.executable.string();
  result.grace = options.grace;
  result.priority.nice = options.nice;
  switch (options.io_priority) {
    case CheckpointProcessOptions::IoPriority::kInherited: break;
    case CheckpointProcessOptions::IoPriority::kLow:
      result.priority.io_class = os::IoClass::kBestEffort;
      result.priority.io_level = 7;
      break;
    case CheckpointProcessOptions::IoPriority::kIdle: result.priority.io_class = os::IoClass::kIdle; break;
  }
  return result;
}

}  // namespace

Result<Catalog> AsyncSaveReport::catalog() const {
  if (!render_metadata) return Error(ErrorCode::kInvalidArgument, "only the coordinator has the metadata");
  CAIRN_TRY_ASSIGN(const std::string pickle, render_metadata());
  CAIRN_TRY_ASSIGN(dcp::DecodedMetadata decoded, dcp::decode_metadata(std::as_bytes(std::span(pickle))));
  CAIRN_TRY(decoded.catalog.index());
  return std::move(decoded.catalog);
}

struct CheckpointStager::Impl {
  staging::ArenaPool arenas;
  std::shared_ptr<device::Links> links = std::make_shared<device::Links>();  // shared with the saves
};

std::shared_ptr<CheckpointStager> CheckpointStager::make(const CheckpointStagerOptions& options) {
  auto limits = options.heed_memory_limits ? std::make_shared<const os::MemoryLimits>() : nullptr;
  auto impl = std::make_unique<Impl>(Impl{staging::ArenaPool(options.generations, std::move(limits))});
  return std::make_shared<CheckpointStager>(std::move(impl));
}
CheckpointStager::CheckpointStager(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CheckpointStager::~CheckpointStager() = default;
std::size_t CheckpointStager::arena_count() const { return impl_->arenas.arena_count(); }
std::uint64_t CheckpointStager::free_bytes() const { return impl_->arenas.free_bytes(); }

struct CheckpointProcess::Impl {
  explicit Impl(writer::ProcessWriterOptions options) : writer(std::move(options)) {}
  writer::ProcessWriter writer;
};

std::shared_ptr<CheckpointProcess> CheckpointProcess::make(const CheckpointProcessOptions& options) {
  return std::make_shared<CheckpointProcess>(std::make_unique<Impl>(options_of(options)));
}
CheckpointProcess::CheckpointProcess(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CheckpointProcess::~CheckpointProcess() = default;
Result<void> CheckpointProcess::start() { return impl_->writer.start_process(); }
std::int64_t CheckpointProcess::pid() const { return impl_->writer.process_id().value_or(0); }

struct AsyncCheckpointer::Impl {
  pid_t process_id = getpid();
  AsyncCheckpointerOptions options;
  std::unique_ptr<writer::ThreadWriter> threads;  // null if `options` has a process
  checkpointer::StagedPlans plans;
  Background background;
  std::shared_future<Result<AsyncSaveReport>> previous;
  bool previous_reported = true;
  std::list<std::shared_future<Result<AsyncSaveReport>>> in_flight;
  bool closed = false;
  std::unique_ptr<staging::ArenaPreparation> preparation;  // last: its thread uses the stager of `options`

  writer::SaveWriter& writer() {
    if (options.process) return options.process->impl().writer;
    return *threads;
  }

  // Without overlap: waits for the end of the previous save, and reports its failure unless reported already.
  Result<void> await_previous(const std::function<bool()>& interrupted) {
    if (!previous.valid() || previous_reported) return {};
    while (previous.wait_for(kPollInterval) != std::future_status::ready) {
      if (interrupted && interrupted()) {
        return Error(ErrorCode::kCancelled, "interrupted while waiting for the previous save");
      }
    }
    previous_reported = true;
    if (previous.get()) return {};
    return Error(previous.get().error()).while_doing("waiting for the previous save, which failed");
  }
};

AsyncCheckpointer::AsyncCheckpointer(AsyncCheckpointerOptions options) : impl_(std::make_unique<Impl>()) {
  impl_->options = std::move(options);
  if (!impl_->options.stager) impl_->options.stager = CheckpointStager::make();
  if (impl_->options.process) {
    impl_->options.stager->impl().arenas.share_with_processes();
  } else {
    impl_->threads = std::make_unique<writer::ThreadWriter>(os::Priority{.nice = impl_->options.nice});
  }
}
AsyncCheckpointer::AsyncCheckpointer(AsyncCheckpointer&&) noexcept = default;
AsyncCheckpointer& AsyncCheckpointer::operator=(AsyncCheckpointer&&) noexcept = default;
AsyncCheckpointer::~AsyncCheckpointer() {
  // A forked child can't join the threads, which exist only in the parent, and locks may be held for ever.
  if (impl_ && impl_->process_id != getpid()) detach();
}

Result<AsyncSave> AsyncCheckpointer::save(const std::filesystem::path& directory, const StateDict& state,
                                          const AsyncSaveOptions& options) {
  if (impl_->closed) {
    return abandon_save(Error(ErrorCode::kInvalidArgument, "the checkpointer is closed"), options);
  }
  Result<const StateDict*> given = &state;
  if (!impl_->options.overlap) {
    if (Result<void> awaited = impl_->await_previous(options.save.interrupted); !awaited) {
      given = std::move(awaited).error();
    }
  }
  // The failure of the previous save names the directory of that save, and not `directory`.
  const bool previous_failed = !given;
  const CheckpointStager::Impl& stager = impl_->options.stager->impl();
  const checkpointer::AsyncSaveResources resources{
      &impl_->options.stager->impl().arenas, &impl_->writer(), &impl_->plans,
      [impl = impl_.get()](std::function<void()> work) { return impl->background.run(std::move(work)); }, stager.links};
  Result<AsyncSave> save = options.files ? checkpointer::DirectorySave(resources, directory, options).run(given)
                                         : checkpointer::AsyncSaveOperation(resources, directory, options).run(given);
  if (!save && previous_failed) return std::move(save).error();
  if (!save) return std::move(save).error().while_doing(saving_to(directory));
  impl_->previous = save->write;
  impl_->previous_reported = false;
  impl_->in_flight.remove_if([](const std::shared_future<Result<AsyncSaveReport>>& write) {
    return write.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  });
  impl_->in_flight.push_back(save->write);
  return save;
}

Error AsyncCheckpointer::abandon_save(const Error& reason, const AsyncSaveOptions& options) {
  if (options.save.collectives == nullptr) return reason;
  coordination::Ranks ranks(options.save.collectives, options.save.coordinator_rank);
  if (options.files) return checkpointer::abandon_directory_save(ranks, reason);
  const Result<checkpointer::VoteCount> count = checkpointer::hold_vote(ranks, reason);
  return count ? reason : count.error();
}

Result<void> AsyncCheckpointer::prepare(const StateDict& state, const std::function<bool()>& interrupted) {
  if (impl_->options.process) CAIRN_TRY(impl_->options.process->start());
  CAIRN_TRY_ASSIGN(const checkpointer::SaveItems items,
                   checkpointer::SaveItems::make(state, checkpointer::ReadableMemory::kOfAnyDevice));
  CAIRN_TRY_ASSIGN(const data_file::LaidOutFile file, data_file::FileImage::lay_out({}, items.sources()));
  CheckpointStager::Impl& stager = impl_->options.stager->impl();
  stager.links->release_parked();
  CAIRN_TRY_ASSIGN(const std::shared_ptr<staging::Arena> arena, stager.arenas.take(file.file_bytes, interrupted));
  CAIRN_TRY(make_all_present(*arena, interrupted));
  CAIRN_TRY(register_for(state, *arena, *stager.links, interrupted));
  return impl_->writer().prepare(arena);
}

Result<void> AsyncCheckpointer::prepare_ahead(std::uint64_t bytes, std::chrono::milliseconds idle_max) {
  if (impl_->closed) return Error(ErrorCode::kInvalidArgument, "the checkpointer is closed");
  impl_->preparation.reset();
  staging::ArenaPreparation::Steps steps;
  if (const auto process = impl_->options.process) {
    // A failure is left to the save, which starts the process again.
    steps.before = [process] { (void)process->start(); };
    steps.with = [process](const std::shared_ptr<staging::Arena>& arena) {
      (void)process->impl().writer.prepare(arena);
    };
  }
  staging::PreparationOptions options;
  options.idle_max = idle_max;
  options.priority.nice = kPreparationNice;
  CAIRN_TRY_ASSIGN(impl_->preparation, staging::ArenaPreparation::start(impl_->options.stager->impl().arenas, bytes,
                                                                        options, std::move(steps)));
  return {};
}

std::shared_ptr<CheckpointStager> AsyncCheckpointer::stager() const { return impl_ ? impl_->options.stager : nullptr; }

void AsyncCheckpointer::detach() noexcept {
  if (impl_ && impl_->process_id == getpid() && impl_->preparation) impl_->preparation->request_stop();
  (void)impl_.release();
}

Result<void> AsyncCheckpointer::close() {
  impl_->closed = true;
  impl_->preparation.reset();
  impl_->background.join_all();
  Result<void> first = impl_->options.overlap ? Result<void>() : impl_->await_previous({});
  for (const auto& write : impl_->in_flight) write.wait();
  impl_->in_flight.clear();
  return first;
}

}  // namespace cairn

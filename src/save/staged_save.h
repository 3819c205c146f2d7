// StagedSave: an asynchronous save of one rank from the claim to the end: the state that the operation, the writer and
// the caller's AsyncSave share. The operation plans the save (async_save_operation.cc, directory_save.cc), and stages
// the bytes by the functions below.
//
// Threads: the operation's thread until the bytes are staged, and the threads that the functions name.
#pragma once

#include <cairn/async_checkpointer.h>
#include <cairn/result.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/links.h"
#include "events/operation.h"
#include "save/save_items.h"
#include "staging/arena.h"
#include "staging/copy_item.h"
#include "staging/device_sources.h"
#include "staging/source_samples.h"
#include "staging/staging_fence.h"
#include "writer/save_writer.h"

namespace cairn::checkpointer {

struct StagedSave {
  // Null after staging; the writer keeps a reference until the files are written.
  std::shared_ptr<staging::Arena> arena;
  std::function<Result<std::string>()> render_metadata;
  SaveId save_id;
  std::string directory;  // for the texts of errors
  std::promise<Result<void>> staging;
  std::promise<Result<AsyncSaveReport>> write;
  std::unique_ptr<writer::WriterSave> save;
  std::optional<std::uint32_t> rank;            // if there are several
  std::atomic<std::uint64_t> bytes_written{0};  // 0 until the save has succeeded
  std::uint64_t file_bytes = 0;                 // of this rank's files
  std::optional<std::string> parts_warning;
  std::optional<std::string> differences;  // the coordinator's warning about values that differ between the ranks
  std::atomic<bool> is_staged{false};
  events::Operation events;
  // For a staging that continues after the call.
  SaveItems items;
  std::deque<std::string> file_bytes_held;  // ready bytes of files (SavedFile::bytes)
  std::vector<staging::CopyItem> copies;
  staging::SourceSamples samples;
  std::unique_ptr<staging::DeviceSources> devices;  // null if no tensor is on a device
  staging::StagingFence fence;
  std::shared_ptr<device::Links> links;

  void abandon(const Error& reason) const { save->abandon(rank ? Error(reason).rank(*rank) : reason); }
  // Ends the save after an error of the operation, also one that attempt() made of an exception. Without this call the
  // writer would keep the save and the arena until the deadline.
  void fail(const Error& reason);
  // A writer process sends its reports with a delay. Before the first report the phase and the totals come from here.
  SaveProgress progress() const;
  // An error that the caller receives from a future, with the directory of the save.
  Error named(const Error& error) const { return Error(error).while_doing("saving to '" + directory + "'"); }
  void end(Result<commit::RankSaveReport> outcome);
};

// The longest wait for memory while the remaining ranks, or the coordinator's writer, wait for this rank.
std::chrono::milliseconds memory_wait_max(const SaveDeadlines& deadlines);

// Starts the save with the writer. Moves `events` into the save, unless the writer can't start.
Result<void> start_writer(const std::shared_ptr<StagedSave>& shared, events::Operation& events,
                          writer::SaveWriter& writer);

// After the copies are listed: marks the work of devices before the copies, and samples the tensors if the options ask
// for an alarm.
Result<void> sample_sources(StagedSave& shared, const AsyncSaveOptions& options);

// What the options, the arena and `layout` say about the request to the writer. The operation adds the place, the names
// and, at the coordinator, the checkpoint. The umask is that of now.
writer::SaveRequest save_request(const StagedSave& shared, const AsyncSaveOptions& options,
                                 std::shared_ptr<const writer::StagedLayout> layout);

// After the writer's begin(): copies the listed items into the arena, on this thread or by `in_background`, as the
// options say; then the writer goes on alone. Returns the caller's handle.
Result<AsyncSave> stage_in_background_or_now(const std::shared_ptr<StagedSave>& shared, const AsyncSaveOptions& options,
                                             std::uint64_t arena_bytes,
                                             const std::function<Result<void>(std::function<void()>)>& in_background);

// For a rank that fails between the ranks' agreement and its writer's begin(): leaves the error for the writers of the
// remaining ranks, which can't see the failure otherwise. If the storage hangs, returns after the deadline of the call;
// the remaining ranks then wait until their deadline. Does nothing at the coordinator and for a rank alone.
void mark_failure_before_begin(const std::string& directory, const commit::SaveTicket& ticket,
                               const commit::RankPlace& place, const SaveDeadlines& deadlines, const Error& reason);

}  // namespace cairn::checkpointer

// PlannedLoad: a load in two steps, for targets that are used one after the other while later targets are still read.
#pragma once

#include <cairn/checkpoint.h>
#include <cairn/result.h>
#include <cairn/state_dict.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace cairn {

// Gets the index of an entry of the state, and the outcome of its load.
using EntryFilled = std::function<void(std::size_t entry, const Result<void>& outcome)>;

// A load whose reads are planned and whose files are open. Movable. run() is called once; cancel() from any thread.
class PlannedLoad {
 public:
  // The keys that the checkpoint lacks, with LoadOptions::allow_partial.
  const std::vector<std::string>& missing() const;

  // Fills the targets: first the values and what needs no read, then the tensors in the order of `order`, indices of
  // entries; the entries that `order` lacks come last, in the order of the state. `filled` is called once for each
  // entry that is not missing, as soon as the entry is filled or has failed, by a reading thread, and at the same time
  // by several; it must not throw. A failure of one entry does not end the load of the others. No collectives are
  // called, and the load is not restarted: a checkpoint that was replaced meanwhile is read on through the open files,
  // or fails with kReplaced.
  //
  // The report, or the first failure in time.
  Result<LoadReport> run(const EntryFilled& filled, std::span<const std::size_t> order = {});
  // run() ends soon: entries that are not filled yet fail with kCancelled.
  void cancel() noexcept;

  PlannedLoad(PlannedLoad&&) noexcept;
  PlannedLoad& operator=(PlannedLoad&&) noexcept;
  ~PlannedLoad();

  struct Impl;  // the library's own
  explicit PlannedLoad(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

// The first step of a load, which is that of Checkpoint::load(): errors that metadata and values reveal fail the call,
// on all ranks alike, and no target has changed. Ranks share no reads, and `broadcast_replicas` has no effect.
// `options.interrupted` and `options.collectives` are used only within the call. `state`, its targets and `checkpoint`
// outlive the result.
Result<PlannedLoad> plan_load(const Checkpoint& checkpoint, StateDict& state, const LoadOptions& options = {});

}  // namespace cairn

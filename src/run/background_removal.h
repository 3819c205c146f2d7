// BackgroundRemoval: a thread of low priority that first finishes the removals that a crash of an earlier process has
// interrupted, and then, whenever a save is durable, removes the checkpoints of a run that its rule does not keep.
#pragma once

#include <cairn/result.h>
#include <cairn/retention.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "run/managing_lease.h"

namespace cairn::run {

class BackgroundRemoval {
 public:
  using Warn = std::function<void(const Error&)>;

  // Without a `rule`, removals are finished, and none begins. Without the `lease` none begins either. kInvalidArgument
  // for a rule that prune() refuses.
  static Result<std::unique_ptr<BackgroundRemoval>> start(const std::filesystem::path& root,
                                                          const std::optional<PruneOptions>& rule,
                                                          std::shared_ptr<ManagingLease> lease, Warn warn);
  ~BackgroundRemoval();

  // A save is durable: the rule is applied once more.
  void wake();
  // No removal begins afterwards. First waits up to `finish` until the rule is applied for all calls of wake(), or
  // until `interrupted`, which may be empty. Then the removal under way ends after its present checkpoint. The first
  // pass ends so in any case. Waits 5 seconds at most for a call into the storage that hangs: its thread is left
  // behind.
  void end(std::chrono::milliseconds finish, const std::function<bool()>& interrupted = {});

 private:
  class Work;
  explicit BackgroundRemoval(std::shared_ptr<Work> work);
  std::shared_ptr<Work> work_;  // also the thread's
};

}  // namespace cairn::run

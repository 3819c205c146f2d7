// BackgroundRemoval: a thread of low priority that first finishes the removals that a crash of an earlier process has
// interrupted, and then, whenever a save is durable, removes the checkpoints of a run that its rule does not keep.
#pragma once

#include <cairn/result.h>
#include <cairn/retention.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "run/managing_lease.h"

namespace cairn::run {

class BackgroundRemoval {
 public:
  using Warn = std::function<void(const Error&)>;

  // Without a `rule`, removals are finished, and none begins. `lease` outlives the object: without it none begins
  // either. kInvalidArgument for a rule that prune() refuses.
  static Result<std::unique_ptr<BackgroundRemoval>> start(const std::filesystem::path& root,
                                                          const std::optional<PruneOptions>& rule, ManagingLease& lease,
                                                          Warn warn);
  ~BackgroundRemoval();

  // A save is durable: the rule is applied once more.
  void wake();
  // No removal begins afterwards. First waits up to `finish` until the rule is applied for all calls of wake(), or
  // until `interrupted`, which may be empty. Then the removal under way ends after its present checkpoint. The first
  // pass ends so in any case.
  void end(std::chrono::milliseconds finish, const std::function<bool()>& interrupted = {});

 private:
  BackgroundRemoval(std::filesystem::path root, std::optional<PruneOptions> rule, ManagingLease& lease, Warn warn);
  void run(const std::stop_token& stop);
  void apply(const std::stop_token& stop);
  void finish_interrupted(const std::stop_token& stop);
  void report(const Result<PruneReport>& report) const;

  const std::filesystem::path root_;
  const std::optional<PruneOptions> rule_;
  ManagingLease& lease_;
  const Warn warn_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  bool is_wanted_ = false;
  bool is_running_ = false;
  std::jthread thread_;
};

}  // namespace cairn::run

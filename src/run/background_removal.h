// BackgroundRemoval: removes the checkpoints of a run that its rule does not keep, in a thread of low priority.
#pragma once

#include <cairn/result.h>
#include <cairn/retention.h>

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "run/managing_lease.h"

namespace cairn::run {

class BackgroundRemoval {
 public:
  using Warn = std::function<void(const Error&)>;

  // `lease` outlives the object: without it nothing is removed. kInvalidArgument for a rule that prune() refuses.
  static Result<std::unique_ptr<BackgroundRemoval>> start(const std::filesystem::path& root, const PruneOptions& rule,
                                                          ManagingLease& lease, Warn warn);
  ~BackgroundRemoval();

  // A save is durable: the rule is applied once more.
  void wake();
  // No removal begins afterwards. `finish`: the rule is applied for all calls of wake(); false: the removal under way
  // ends after its present checkpoint.
  void end(bool finish);

 private:
  BackgroundRemoval(std::filesystem::path root, PruneOptions rule, ManagingLease& lease, Warn warn);
  void run(const std::stop_token& stop);
  void apply(const std::stop_token& stop);

  const std::filesystem::path root_;
  const PruneOptions rule_;
  ManagingLease& lease_;
  const Warn warn_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  bool is_wanted_ = false;
  bool is_running_ = false;
  std::jthread thread_;
};

}  // namespace cairn::run

// DyingStorage: kills its process right before or right after a publish or a commit. For tests.
#pragma once

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "storage/testing/change_watching_storage.h"

namespace cairn::storage {

class DyingStorage final : public ChangeWatchingStorage {
 public:
  enum class Moment : std::uint8_t { kBeforePublish, kAfterPublish, kBeforeCommit, kAfterCommit, kAtOperation };
  // kAtOperation: `operation` changing operations succeed, and the process dies at the next changing operation.
  DyingStorage(std::unique_ptr<Storage> storage, Moment moment, int operation = -1)
      : ChangeWatchingStorage(std::move(storage)), moment_(moment), operations_left_(operation) {}

  Result<void> publish(std::string_view from, std::string_view to) override {
    die_at(Moment::kBeforePublish);
    Result<void> published = ChangeWatchingStorage::publish(from, to);
    die_at(Moment::kAfterPublish);
    return published;
  }
  Result<void> replace(std::string_view from, std::string_view to) override {
    die_at(Moment::kBeforeCommit);
    Result<void> replaced = ChangeWatchingStorage::replace(from, to);
    die_at(Moment::kAfterCommit);
    return replaced;
  }

 private:
  static void die() {
    raise(SIGKILL);
    pause();
  }
  void die_at(Moment moment) const {
    if (moment == moment_) die();
  }
  void before_change() override {
    if (operations_left_-- == 0) die();
  }

  Moment moment_;
  std::atomic<int> operations_left_;
};

}  // namespace cairn::storage

// DyingStorage: kills its process when that is about to publish or commit, or has just done it. For tests.
#pragma once

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "storage/testing/view_storage.h"

namespace cairn::storage {

class DyingStorage final : public ViewStorage {
 public:
  enum class Moment : std::uint8_t { kBeforePublish, kAfterPublish, kBeforeCommit, kAfterCommit, kAtOperation };
  // kAtOperation: `operation` more operations that change something are done, the next is not.
  DyingStorage(std::unique_ptr<Storage> storage, Moment moment, int operation = -1)
      : ViewStorage(*storage), storage_(std::move(storage)), moment_(moment), operations_left_(operation) {}

  Result<void> publish(std::string_view from, std::string_view to) override {
    count();
    die_at(Moment::kBeforePublish);
    Result<void> published = ViewStorage::publish(from, to);
    die_at(Moment::kAfterPublish);
    return published;
  }
  Result<void> replace(std::string_view from, std::string_view to) override {
    count();
    die_at(Moment::kBeforeCommit);
    Result<void> replaced = ViewStorage::replace(from, to);
    die_at(Moment::kAfterCommit);
    return replaced;
  }
  Result<std::unique_ptr<WritableFile>> create(std::string_view name, const CreateOptions& options) override {
    count();
    return ViewStorage::create(name, options);
  }
  Result<void> create_whole(std::string_view name, std::string_view bytes, Durability durability) override {
    count();
    return ViewStorage::create_whole(name, bytes, durability);
  }
  Result<void> remove(std::string_view name) override {
    count();
    return ViewStorage::remove(name);
  }
  Result<void> remove_folder(std::string_view name) override {
    count();
    return ViewStorage::remove_folder(name);
  }
  Result<void> sync(std::string_view folder) override {
    count();
    return ViewStorage::sync(folder);
  }

 private:
  static void die() {
    raise(SIGKILL);
    pause();
  }
  void die_at(Moment moment) const {
    if (moment == moment_) die();
  }
  void count() {
    if (operations_left_-- == 0) die();
  }

  std::unique_ptr<Storage> storage_;
  Moment moment_;
  std::atomic<int> operations_left_;
};

}  // namespace cairn::storage

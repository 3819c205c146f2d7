// ThrowingStorage: throws bad_alloc once, at the operation chosen by the test. For tests.
#pragma once

#include <atomic>
#include <memory>
#include <new>
#include <string_view>
#include <utility>

#include "storage/testing/change_watching_storage.h"

namespace cairn::storage {

class ThrowingStorage final : public ChangeWatchingStorage {
 public:
  // `operations_left` outlives the storage; every operation decrements the counter.
  ThrowingStorage(std::unique_ptr<Storage> storage, std::atomic<int>& operations_left)
      : ChangeWatchingStorage(std::move(storage)), operations_left_(operations_left) {}

  Result<std::unique_ptr<ReadableFile>> open(std::string_view name, bool follow_links) const override {
    count();
    return ChangeWatchingStorage::open(name, follow_links);
  }

 private:
  void before_change() override { count(); }
  void count() const {
    if (operations_left_-- == 0) throw std::bad_alloc();
  }

  std::atomic<int>& operations_left_;
};

}  // namespace cairn::storage

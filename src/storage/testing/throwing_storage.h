// ThrowingStorage: memory runs out once, at an operation that a test chooses. For tests.
#pragma once

#include <atomic>
#include <memory>
#include <new>
#include <string_view>
#include <utility>

#include "storage/testing/view_storage.h"

namespace cairn::storage {

class ThrowingStorage final : public ViewStorage {
 public:
  // `operations_left` outlives it, and is counted down.
  ThrowingStorage(std::unique_ptr<Storage> storage, std::atomic<int>& operations_left)
      : ViewStorage(*storage), storage_(std::move(storage)), operations_left_(operations_left) {}

  Result<std::unique_ptr<WritableFile>> create(std::string_view name, const CreateOptions& options) override {
    count();
    return ViewStorage::create(name, options);
  }
  Result<void> create_whole(std::string_view name, std::string_view bytes, Durability durability) override {
    count();
    return ViewStorage::create_whole(name, bytes, durability);
  }
  Result<std::unique_ptr<ReadableFile>> open(std::string_view name, bool follow_links) const override {
    count();
    return ViewStorage::open(name, follow_links);
  }
  Result<void> publish(std::string_view from, std::string_view to) override {
    count();
    return ViewStorage::publish(from, to);
  }
  Result<void> replace(std::string_view from, std::string_view to) override {
    count();
    return ViewStorage::replace(from, to);
  }
  Result<void> remove(std::string_view name) override {
    count();
    return ViewStorage::remove(name);
  }
  Result<void> sync(std::string_view folder) override {
    count();
    return ViewStorage::sync(folder);
  }

 private:
  void count() const {
    if (operations_left_-- == 0) throw std::bad_alloc();
  }

  std::unique_ptr<Storage> storage_;
  std::atomic<int>& operations_left_;
};

}  // namespace cairn::storage

// FullStorage and StorageThatGetsRoom: storages without room for the marks of an asynchronous save, for good or at
// first. For tests.
#pragma once

#include <cerrno>
#include <memory>
#include <string_view>
#include <utility>

#include "storage/testing/view_storage.h"

namespace cairn::storage {

// A full disk: creating a data file fails, and so does creating the mark of the failure.
class FullStorage final : public ViewStorage {
 public:
  explicit FullStorage(std::unique_ptr<Storage> storage) : ViewStorage(*storage), storage_(std::move(storage)) {}
  Result<std::unique_ptr<WritableFile>> create(std::string_view, const CreateOptions&) override {
    return Error::from_errno(ENOSPC, "creating");
  }
  Result<void> create_whole(std::string_view name, std::string_view bytes, Durability durability) override {
    if (name.find("failed") != std::string_view::npos) return Error::from_errno(ENOSPC, "creating");
    return ViewStorage::create_whole(name, bytes, durability);
  }

 private:
  std::unique_ptr<Storage> storage_;
};

// A disk without room for the first mark of a failure; the second attempt succeeds.
class StorageThatGetsRoom final : public ViewStorage {
 public:
  explicit StorageThatGetsRoom(std::unique_ptr<Storage> storage)
      : ViewStorage(*storage), storage_(std::move(storage)) {}
  Result<void> create_whole(std::string_view name, std::string_view bytes, Durability durability) override {
    if (name.ends_with("/failed") && !std::exchange(refused_, true)) return Error::from_errno(ENOSPC, "creating");
    return ViewStorage::create_whole(name, bytes, durability);
  }

 private:
  std::unique_ptr<Storage> storage_;
  bool refused_ = false;
};

}  // namespace cairn::storage

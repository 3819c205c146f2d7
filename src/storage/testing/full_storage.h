// FullStorage and StorageThatGetsRoom: where the marks of an asynchronous save find no room, ever or at first. For
// tests.
#pragma once

#include <cerrno>
#include <memory>
#include <string_view>
#include <utility>

#include "storage/testing/view_storage.h"

namespace cairn::storage {

// On a full disk: files can't be made, not even the mark that says so.
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

// Where the first verdict finds no room.
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

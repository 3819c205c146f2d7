// ChangeWatchingStorage: calls a method of the derived class before every operation that changes the directory. For
// tests.
#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "storage/testing/view_storage.h"

namespace cairn::storage {

class ChangeWatchingStorage : public ViewStorage {
 public:
  explicit ChangeWatchingStorage(std::unique_ptr<Storage> storage)
      : ViewStorage(*storage), storage_(std::move(storage)) {}

  Result<std::unique_ptr<WritableFile>> create(std::string_view name, const CreateOptions& options) override {
    before_change();
    return ViewStorage::create(name, options);
  }
  Result<void> create_whole(std::string_view name, std::string_view bytes, Durability durability) override {
    before_change();
    return ViewStorage::create_whole(name, bytes, durability);
  }
  Result<void> publish(std::string_view from, std::string_view to) override {
    before_change();
    return ViewStorage::publish(from, to);
  }
  Result<void> replace(std::string_view from, std::string_view to) override {
    before_change();
    return ViewStorage::replace(from, to);
  }
  Result<void> remove(std::string_view name) override {
    before_change();
    return ViewStorage::remove(name);
  }
  Result<void> remove_folder(std::string_view name) override {
    before_change();
    return ViewStorage::remove_folder(name);
  }
  Result<void> sync(std::string_view folder) override {
    before_change();
    return ViewStorage::sync(folder);
  }
  Result<void> move_folder(std::string_view from, std::string_view to) override {
    before_change();
    return ViewStorage::move_folder(from, to);
  }
  Result<void> exchange_folders(std::string_view one, std::string_view two) override {
    before_change();
    return ViewStorage::exchange_folders(one, two);
  }

 private:
  // May not return.
  virtual void before_change() = 0;

  std::unique_ptr<Storage> storage_;
};

}  // namespace cairn::storage

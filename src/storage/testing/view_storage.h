// ViewStorage: forwards every call to a storage that outlives the view. A test overrides the call under test.
#pragma once

#include <memory>
#include <utility>

#include "storage/storage.h"

namespace cairn::storage {

class ViewStorage : public Storage {
 public:
  explicit ViewStorage(Storage& storage) : storage_(storage) {}
  Result<std::unique_ptr<StorageLock>> lock() override { return storage_.lock(); }
  void set_stop(std::shared_ptr<const os::StopFlag> stop) override { storage_.set_stop(std::move(stop)); }
  Result<void> make_folder(std::string_view name) override { return storage_.make_folder(name); }
  Result<void> join_folder(std::string_view name) override { return storage_.join_folder(name); }
  Result<void> remove_folder(std::string_view name) override { return storage_.remove_folder(name); }
  Result<std::unique_ptr<WritableFile>> create(std::string_view name, const CreateOptions& options) override {
    return storage_.create(name, options);
  }
  Result<void> create_whole(std::string_view name, std::string_view bytes, Durability durability) override {
    return storage_.create_whole(name, bytes, durability);
  }
  Result<std::unique_ptr<ReadableFile>> open(std::string_view name, bool follow_links) const override {
    return storage_.open(name, follow_links);
  }
  Result<std::vector<ListedFile>> list(std::string_view folder) const override { return storage_.list(folder); }
  Result<void> publish(std::string_view from, std::string_view to) override { return storage_.publish(from, to); }
  Result<void> replace(std::string_view from, std::string_view to) override { return storage_.replace(from, to); }
  Result<void> remove(std::string_view name) override { return storage_.remove(name); }
  Result<void> sync(std::string_view folder) override { return storage_.sync(folder); }
  Result<void> rewrite(std::string_view name, std::string_view bytes) override { return storage_.rewrite(name, bytes); }
  Result<void> touch(std::string_view name) override { return storage_.touch(name); }
  Result<double> touched_at(std::string_view name) const override { return storage_.touched_at(name); }
  Result<std::unique_ptr<Storage>> open_parent() const override { return storage_.open_parent(); }
  Result<std::unique_ptr<Storage>> open_folder(std::string_view name) const override {
    return storage_.open_folder(name);
  }
  Result<void> move_folder(std::string_view from, std::string_view to) override {
    return storage_.move_folder(from, to);
  }
  Result<void> exchange_folders(std::string_view one, std::string_view two) override {
    return storage_.exchange_folders(one, two);
  }
  Result<bool> can_exchange_folders() override { return storage_.can_exchange_folders(); }
  bool has_rename() const override { return storage_.has_rename(); }
  std::uint64_t preferred_write_bytes(std::uint64_t file_bytes) const override {
    return storage_.preferred_write_bytes(file_bytes);
  }
  Result<TaggedContent> read_tagged(std::string_view name, std::uint64_t bytes_max) const override {
    return storage_.read_tagged(name, bytes_max);
  }
  Result<WriteOutcome> write_if(std::string_view name, std::string_view bytes,
                                const WriteCondition& condition) override {
    return storage_.write_if(name, bytes, condition);
  }
  Result<WriteOutcome> remove_if(std::string_view name, const std::string& tag) override {
    return storage_.remove_if(name, tag);
  }
  Result<double> now() const override { return storage_.now(); }
  Result<bool> keeps_conditions() override { return storage_.keeps_conditions(); }
  Result<void> abandon_writes(const std::function<bool(std::string_view name)>& is_abandoned) override {
    return storage_.abandon_writes(is_abandoned);
  }
  // remove_all() is the default's: it calls the remove() of a derived class for each name.

 private:
  Storage& storage_;
};

}  // namespace cairn::storage

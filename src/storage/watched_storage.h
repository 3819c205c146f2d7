// WatchedStorage: forwards every call to a storage, and reports begin and return of the call to an OperationWatch.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "storage/operation_watch.h"
#include "storage/storage.h"
#include "storage/watched_thread.h"

namespace cairn::storage {

class WatchedStorage final : public Storage {
 public:
  // The watch is also owned by the judge of the calls and by the opened files. `directory`: if not empty, the calls
  // that open, read and list name the files with the directory, for a watch over several storages.
  WatchedStorage(std::unique_ptr<Storage> storage, std::shared_ptr<OperationWatch> watch,
                 std::filesystem::path directory = {})
      : storage_(std::move(storage)), watch_(std::move(watch)), directory_(std::move(directory)) {}

  Result<std::unique_ptr<StorageLock>> lock() override;
  void set_stop(std::shared_ptr<const os::StopFlag> stop) override { storage_->set_stop(std::move(stop)); }
  Result<void> make_folder(std::string_view name) override;
  Result<void> join_folder(std::string_view name) override;
  Result<void> remove_folder(std::string_view name) override;
  Result<std::unique_ptr<WritableFile>> create(std::string_view name, const CreateOptions& options) override;
  Result<void> create_whole(std::string_view name, std::string_view bytes, Durability durability) override;
  Result<std::unique_ptr<ReadableFile>> open(std::string_view name, bool follow_links) const override;
  Result<std::vector<ListedFile>> list(std::string_view folder) const override;
  Result<void> publish(std::string_view from, std::string_view to) override;
  Result<void> replace(std::string_view from, std::string_view to) override;
  Result<void> remove(std::string_view name) override;
  Result<void> sync(std::string_view folder) override;
  Result<void> touch(std::string_view name) override;
  Result<void> rewrite(std::string_view name, std::string_view bytes) override;
  Result<double> touched_at(std::string_view name) const override;
  Result<std::unique_ptr<Storage>> open_parent() const override;
  Result<std::unique_ptr<Storage>> open_folder(std::string_view name) const override;
  Result<void> move_folder(std::string_view from, std::string_view to) override;
  Result<void> exchange_folders(std::string_view one, std::string_view two) override;
  Result<bool> can_exchange_folders() override;
  bool has_rename() const override { return storage_->has_rename(); }
  std::uint64_t preferred_write_bytes(std::uint64_t file_bytes) const override {
    return storage_->preferred_write_bytes(file_bytes);
  }
  Result<TaggedContent> read_tagged(std::string_view name, std::uint64_t bytes_max) const override;
  Result<WriteOutcome> write_if(std::string_view name, std::string_view bytes,
                                const WriteCondition& condition) override;
  Result<WriteOutcome> remove_if(std::string_view name, const std::string& tag) override;
  Result<double> now() const override;
  Result<bool> keeps_conditions() override;
  Result<void> abandon_writes(const std::function<bool(std::string_view name)>& is_abandoned) override;
  std::vector<Error> remove_all(std::span<const std::string> names) override;

 private:
  std::string full_name(std::string_view name) const { return (directory_ / name).string(); }

  std::unique_ptr<Storage> storage_;
  std::shared_ptr<OperationWatch> watch_;
  std::filesystem::path directory_;
};

// Opens a storage by `open`, which counts as a call into the directory `name`. `directory`: as in WatchedStorage.
Result<std::unique_ptr<Storage>> open_watched(const std::function<Result<std::unique_ptr<Storage>>()>& open,
                                              const std::shared_ptr<OperationWatch>& watch, const std::string& name,
                                              const std::filesystem::path& directory = {});
// As above, by a watched thread: its stop flag ends the waits for the lock of the directory.
Result<std::unique_ptr<Storage>> open_watched(const std::function<Result<std::unique_ptr<Storage>>()>& open,
                                              const std::shared_ptr<Watch>& watch, const std::string& name);

}  // namespace cairn::storage

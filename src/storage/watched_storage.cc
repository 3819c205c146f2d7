#include "storage/watched_storage.h"

#include <string>

namespace cairn::storage {
namespace {

using Call = OperationWatch::Call;
using Kind = OperationKind;

class WatchedWritableFile final : public WritableFile {
 public:
  WatchedWritableFile(std::unique_ptr<WritableFile> file, std::shared_ptr<OperationWatch> watch, std::string_view name)
      : file_(std::move(file)), watch_(std::move(watch)), name_(name) {}
  // Closing may take long: on close, a network file system sends the data that it has cached.
  ~WatchedWritableFile() override {
    const Call call(*watch_, Kind::kNames, "closing", name_);
    file_.reset();
  }
  WatchedWritableFile(const WatchedWritableFile&) = delete;
  WatchedWritableFile& operator=(const WatchedWritableFile&) = delete;

  std::size_t write_alignment() const override { return file_->write_alignment(); }
  Result<void> write_at(std::uint64_t offset, std::span<const std::byte> data) override {
    const Call call(*watch_, Kind::kWrite, "writing", name_);
    return file_->write_at(offset, data);
  }
  Result<void> finish(std::uint64_t size, Durability durability) override {
    const bool syncs = durability == Durability::kDurable;
    const Call call(*watch_, syncs ? Kind::kSync : Kind::kNames, syncs ? "syncing" : "closing", name_);
    return file_->finish(size, durability);
  }

 private:
  std::unique_ptr<WritableFile> file_;
  std::shared_ptr<OperationWatch> watch_;  // shared with the storage
  std::string name_;
};

class WatchedReadableFile final : public ReadableFile {
 public:
  WatchedReadableFile(std::unique_ptr<ReadableFile> file, std::shared_ptr<OperationWatch> watch, std::string_view name)
      : file_(std::move(file)), watch_(std::move(watch)), name_(name) {}
  ~WatchedReadableFile() override {
    const Call call(*watch_, Kind::kNames, "closing", name_);
    file_.reset();
  }
  WatchedReadableFile(const WatchedReadableFile&) = delete;
  WatchedReadableFile& operator=(const WatchedReadableFile&) = delete;

  std::uint64_t size() const override { return file_->size(); }
  Result<void> read_at(std::uint64_t offset, std::span<std::byte> target) const override {
    const Call call(*watch_, Kind::kNames, "reading", name_);
    return file_->read_at(offset, target);
  }
  std::optional<DirectAlignment> direct_alignment() const override { return file_->direct_alignment(); }
  Result<void> read_direct_at(std::uint64_t offset, std::span<std::byte> target) const override {
    const Call call(*watch_, Kind::kNames, "reading", name_);
    return file_->read_direct_at(offset, target);
  }
  bool is_cached(std::uint64_t offset, std::uint64_t length) const override { return file_->is_cached(offset, length); }
  std::size_t requests_in_flight() const override { return file_->requests_in_flight(); }
  std::string tag() const override { return file_->tag(); }
  void prefetch(std::uint64_t offset, std::uint64_t length) const override {
    const Call call(*watch_, Kind::kNames, "reading", name_);
    file_->prefetch(offset, length);
  }
  void drop_cached(std::uint64_t offset, std::uint64_t length) const override {
    const Call call(*watch_, Kind::kNames, "reading", name_);
    file_->drop_cached(offset, length);
  }

 private:
  std::unique_ptr<ReadableFile> file_;
  std::shared_ptr<OperationWatch> watch_;  // shared with the storage
  std::string name_;
};

class WatchedLock final : public StorageLock {
 public:
  WatchedLock(std::unique_ptr<StorageLock> lock, std::shared_ptr<OperationWatch> watch)
      : lock_(std::move(lock)), watch_(std::move(watch)) {}
  ~WatchedLock() override {
    const Call call(*watch_, Kind::kNames, "unlocking the directory", "");
    lock_.reset();
  }
  WatchedLock(const WatchedLock&) = delete;
  WatchedLock& operator=(const WatchedLock&) = delete;

  bool is_held() const override {
    const Call call(*watch_, Kind::kNames, "checking the lock of the directory", "");
    return lock_->is_held();
  }

 private:
  std::unique_ptr<StorageLock> lock_;
  std::shared_ptr<OperationWatch> watch_;  // shared with the storage
};

}  // namespace

Result<std::unique_ptr<StorageLock>> WatchedStorage::lock() {
  std::unique_ptr<StorageLock> lock;
  {
    const Call call(*watch_, Kind::kNames, "locking the directory (another save may hold the lock)", "");
    CAIRN_TRY_ASSIGN(lock, storage_->lock());
  }
  if (lock) lock = std::make_unique<WatchedLock>(std::move(lock), watch_);
  return lock;
}

Result<void> WatchedStorage::make_folder(std::string_view name) {
  const Call call(*watch_, Kind::kNames, "making the folder", name);
  return storage_->make_folder(name);
}

Result<void> WatchedStorage::join_folder(std::string_view name) {
  const Call call(*watch_, Kind::kNames, "opening the folder", name);
  return storage_->join_folder(name);
}

Result<void> WatchedStorage::remove_folder(std::string_view name) {
  const Call call(*watch_, Kind::kNames, "removing the folder", name);
  return storage_->remove_folder(name);
}

Result<std::unique_ptr<WritableFile>> WatchedStorage::create(std::string_view name, const CreateOptions& options) {
  const Call call(*watch_, Kind::kNames, "creating", name);
  CAIRN_TRY_ASSIGN(std::unique_ptr<WritableFile> file, storage_->create(name, options));
  return std::unique_ptr<WritableFile>(std::make_unique<WatchedWritableFile>(std::move(file), watch_, name));
}

Result<void> WatchedStorage::create_whole(std::string_view name, std::string_view bytes, Durability durability) {
  const Call call(*watch_, durability == Durability::kDurable ? Kind::kSync : Kind::kNames, "writing", name);
  return storage_->create_whole(name, bytes, durability);
}

Result<std::unique_ptr<ReadableFile>> WatchedStorage::open(std::string_view name, bool follow_links) const {
  const Call call(*watch_, Kind::kNames, "opening", full_name(name));
  CAIRN_TRY_ASSIGN(std::unique_ptr<ReadableFile> file, storage_->open(name, follow_links));
  return std::unique_ptr<ReadableFile>(std::make_unique<WatchedReadableFile>(std::move(file), watch_, full_name(name)));
}

Result<std::vector<ListedFile>> WatchedStorage::list(std::string_view folder) const {
  const Call call(*watch_, Kind::kNames, "listing", full_name(folder.empty() ? "." : folder));
  return storage_->list(folder);
}

Result<void> WatchedStorage::publish(std::string_view from, std::string_view to) {
  const Call call(*watch_, Kind::kNames, "renaming to", to);
  return storage_->publish(from, to);
}

Result<void> WatchedStorage::replace(std::string_view from, std::string_view to) {
  const Call call(*watch_, Kind::kNames, "renaming to", to);
  return storage_->replace(from, to);
}

Result<void> WatchedStorage::remove(std::string_view name) {
  const Call call(*watch_, Kind::kNames, "removing", name);
  return storage_->remove(name);
}

Result<void> WatchedStorage::sync(std::string_view folder) {
  const Call call(*watch_, Kind::kSync, "syncing", folder.empty() ? "." : folder);
  return storage_->sync(folder);
}

Result<void> WatchedStorage::touch(std::string_view name) {
  const Call call(*watch_, Kind::kHeartbeat, "touching", name);
  return storage_->touch(name);
}

Result<void> WatchedStorage::rewrite(std::string_view name, std::string_view bytes) {
  const Call call(*watch_, Kind::kHeartbeat, "writing", name);
  return storage_->rewrite(name, bytes);
}

Result<double> WatchedStorage::touched_at(std::string_view name) const {
  const Call call(*watch_, Kind::kNames, "reading the attributes of", name);
  return storage_->touched_at(name);
}

Result<std::unique_ptr<Storage>> WatchedStorage::open_parent() const {
  const Call call(*watch_, Kind::kNames, "opening", full_name(".."));
  CAIRN_TRY_ASSIGN(std::unique_ptr<Storage> parent, storage_->open_parent());
  return std::unique_ptr<Storage>(
      std::make_unique<WatchedStorage>(std::move(parent), watch_, directory_.empty() ? directory_ : directory_ / ".."));
}

Result<std::unique_ptr<Storage>> WatchedStorage::open_folder(std::string_view name) const {
  const Call call(*watch_, Kind::kNames, "opening", full_name(name));
  CAIRN_TRY_ASSIGN(std::unique_ptr<Storage> folder, storage_->open_folder(name));
  return std::unique_ptr<Storage>(std::make_unique<WatchedStorage>(
      std::move(folder), watch_, directory_.empty() ? directory_ : directory_ / std::filesystem::path(name)));
}

Result<void> WatchedStorage::move_folder(std::string_view from, std::string_view to) {
  const Call call(*watch_, Kind::kNames, "renaming to", to);
  return storage_->move_folder(from, to);
}

Result<void> WatchedStorage::exchange_folders(std::string_view one, std::string_view two) {
  const Call call(*watch_, Kind::kNames, "renaming to", two);
  return storage_->exchange_folders(one, two);
}

Result<bool> WatchedStorage::can_exchange_folders() {
  const Call call(*watch_, Kind::kNames, "exchanging two folders", "");
  return storage_->can_exchange_folders();
}

Result<TaggedContent> WatchedStorage::read_tagged(std::string_view name, std::uint64_t bytes_max) const {
  const Call call(*watch_, Kind::kNames, "reading", full_name(name));
  return storage_->read_tagged(name, bytes_max);
}

Result<WriteOutcome> WatchedStorage::write_if(std::string_view name, std::string_view bytes,
                                              const WriteCondition& condition) {
  const Call call(*watch_, Kind::kSync, "writing", name);
  return storage_->write_if(name, bytes, condition);
}

Result<WriteOutcome> WatchedStorage::remove_if(std::string_view name, const std::string& tag) {
  const Call call(*watch_, Kind::kNames, "removing", name);
  return storage_->remove_if(name, tag);
}

Result<double> WatchedStorage::now() const {
  const Call call(*watch_, Kind::kNames, "reading the clock", "");
  return storage_->now();
}

Result<bool> WatchedStorage::keeps_conditions() {
  const Call call(*watch_, Kind::kNames, "trying conditional writes", "");
  return storage_->keeps_conditions();
}

Result<void> WatchedStorage::abandon_writes(const std::function<bool(std::string_view name)>& is_abandoned) {
  const Call call(*watch_, Kind::kNames, "ending unfinished writes", "");
  return storage_->abandon_writes(is_abandoned);
}

std::vector<Error> WatchedStorage::remove_all(std::span<const std::string> names) {
  const Call call(*watch_, Kind::kNames, "removing files", "");
  return storage_->remove_all(names);
}

Result<std::unique_ptr<Storage>> open_watched(const std::function<Result<std::unique_ptr<Storage>>()>& open,
                                              const std::shared_ptr<OperationWatch>& watch, const std::string& name,
                                              const std::filesystem::path& directory) {
  const Call call(*watch, Kind::kNames, "opening", name);
  CAIRN_TRY_ASSIGN(std::unique_ptr<Storage> storage, open());
  return std::unique_ptr<Storage>(std::make_unique<WatchedStorage>(std::move(storage), watch, directory));
}

Result<std::unique_ptr<Storage>> open_watched(const std::function<Result<std::unique_ptr<Storage>>()>& open,
                                              const std::shared_ptr<Watch>& watch, const std::string& name) {
  CAIRN_TRY_ASSIGN(std::unique_ptr<Storage> storage, open_watched(open, watch->operations, name));
  storage->set_stop(std::shared_ptr<const os::StopFlag>(watch, &watch->stop));
  return storage;
}

}  // namespace cairn::storage

// BlockingStorage: calls that hang like calls to an unresponsive file server, until the test releases them. For tests.
#pragma once

#include <cairn/options.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "storage/testing/view_storage.h"

namespace cairn::storage {

// The set of hanging calls. Shared by a test and its storages; thread-safe.
class Blockade {
 public:
  enum class Call : std::uint8_t {
    kOpenDirectory,
    kLock,
    kUnlock,
    kMakeFolder,
    kList,
    kOpen,
    kCreate,
    kWrite,
    kFinish,
    kPublish,
    kReplace,
    kRemove,
    kSync,
  };

  // From now on, calls of the kind hang.
  void block(Call call) {
    const std::lock_guard lock(mutex_);
    blocked_.insert(call);
  }
  // Releases the hanging calls; later calls do not hang.
  void release() {
    const std::lock_guard lock(mutex_);
    blocked_.clear();
    changed_.notify_all();
  }
  // Waits until a call hangs.
  void await_hanging() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return hanging_ != 0; });
  }
  bool is_hanging() {
    const std::lock_guard lock(mutex_);
    return hanging_ != 0;
  }
  // Hangs while calls of the kind are blocked.
  void pass(Call call) {
    std::unique_lock lock(mutex_);
    if (!blocked_.contains(call)) return;
    ++hanging_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return !blocked_.contains(call); });
    --hanging_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<Call> blocked_;
  int hanging_ = 0;
};

// Deadlines for a test that blocks `blocked`: a short deadline for the blocked call, and long deadlines for the rest,
// which may be slow on a busy machine.
inline SaveDeadlines short_for(Blockade::Call blocked) {
  constexpr std::chrono::milliseconds kShort{500};
  constexpr std::chrono::minutes kGenerous{2};
  SaveDeadlines deadlines{kGenerous, kGenerous, kGenerous};
  switch (blocked) {
    case Blockade::Call::kWrite: deadlines.progress = kShort; break;
    case Blockade::Call::kFinish:
    case Blockade::Call::kSync: deadlines.sync = kShort; break;
    default: deadlines.publish = kShort; break;
  }
  return deadlines;
}

class BlockingStorage final : public ViewStorage {
 public:
  // The blockade is shared with the test.
  BlockingStorage(std::unique_ptr<Storage> storage, std::shared_ptr<Blockade> blockade)
      : ViewStorage(*storage), storage_(std::move(storage)), blockade_(std::move(blockade)) {}

  Result<std::unique_ptr<StorageLock>> lock() override {
    blockade_->pass(Blockade::Call::kLock);
    CAIRN_TRY_ASSIGN(std::unique_ptr<StorageLock> lock, ViewStorage::lock());
    if (lock) lock = std::make_unique<Lock>(std::move(lock), blockade_);
    return lock;
  }
  Result<void> make_folder(std::string_view name) override {
    blockade_->pass(Blockade::Call::kMakeFolder);
    return ViewStorage::make_folder(name);
  }
  Result<std::vector<ListedFile>> list(std::string_view folder) const override {
    blockade_->pass(Blockade::Call::kList);
    return ViewStorage::list(folder);
  }
  Result<std::unique_ptr<ReadableFile>> open(std::string_view name, bool follow_links) const override {
    blockade_->pass(Blockade::Call::kOpen);
    return ViewStorage::open(name, follow_links);
  }
  Result<void> remove(std::string_view name) override {
    blockade_->pass(Blockade::Call::kRemove);
    return ViewStorage::remove(name);
  }
  Result<std::unique_ptr<WritableFile>> create(std::string_view name, const CreateOptions& options) override {
    blockade_->pass(Blockade::Call::kCreate);
    CAIRN_TRY_ASSIGN(std::unique_ptr<WritableFile> file, ViewStorage::create(name, options));
    return std::unique_ptr<WritableFile>(std::make_unique<File>(std::move(file), blockade_));
  }
  Result<void> publish(std::string_view from, std::string_view to) override {
    blockade_->pass(Blockade::Call::kPublish);
    return ViewStorage::publish(from, to);
  }
  Result<void> replace(std::string_view from, std::string_view to) override {
    blockade_->pass(Blockade::Call::kReplace);
    return ViewStorage::replace(from, to);
  }
  Result<void> sync(std::string_view folder) override {
    blockade_->pass(Blockade::Call::kSync);
    return ViewStorage::sync(folder);
  }

 private:
  class Lock final : public StorageLock {
   public:
    Lock(std::unique_ptr<StorageLock> lock, std::shared_ptr<Blockade> blockade)
        : lock_(std::move(lock)), blockade_(std::move(blockade)) {}
    ~Lock() override { blockade_->pass(Blockade::Call::kUnlock); }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;
    bool is_held() const override { return lock_->is_held(); }

   private:
    std::unique_ptr<StorageLock> lock_;
    std::shared_ptr<Blockade> blockade_;
  };

  class File final : public WritableFile {
   public:
    File(std::unique_ptr<WritableFile> file, std::shared_ptr<Blockade> blockade)
        : file_(std::move(file)), blockade_(std::move(blockade)) {}
    std::size_t write_alignment() const override { return file_->write_alignment(); }
    Result<void> write_at(std::uint64_t offset, std::span<const std::byte> data) override {
      blockade_->pass(Blockade::Call::kWrite);
      return file_->write_at(offset, data);
    }
    Result<void> finish(std::uint64_t size, Durability durability) override {
      blockade_->pass(Blockade::Call::kFinish);
      return file_->finish(size, durability);
    }

   private:
    std::unique_ptr<WritableFile> file_;
    std::shared_ptr<Blockade> blockade_;
  };

  std::unique_ptr<Storage> storage_;
  std::shared_ptr<Blockade> blockade_;
};

}  // namespace cairn::storage

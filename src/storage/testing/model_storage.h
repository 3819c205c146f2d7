// ModelStorage: a directory in memory that loses unsynced changes in a power cut and fails on request. For tests.
//
// Stricter than real file systems: a power cut may lose any part of the unsynced changes, in any order. A test runs one
// save on the storage, cuts the power, and checks the remaining files.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "storage/storage.h"

namespace cairn::storage {

class ModelStorage final : public Storage {
 public:
  // The number of changing operations. Operations are numbered from 0.
  std::uint64_t operation_count() const;
  // Operation `number` fails with `error`; all other operations succeed.
  void fail_at(std::uint64_t number, Error error);
  // Operation `number` and all later operations fail, until lose_power() or outlive_crash().
  void crash_at(std::uint64_t number);
  bool fault_fired() const;
  // Ends a crash without a power cut: the crashed process was killed, and a new process continues.
  void outlive_crash();

  // Cuts the power and restarts. For every unsynced name and content, `seed` decides between the old and the new state;
  // unsynced contents may also become garbage. All faults are cleared.
  void lose_power(std::uint64_t seed);

  // The names, the contents and the clock of `other`, in place of this disk's. Nothing is held or locked.
  void become(const ModelStorage& other);
  // All names and contents, now and after a power cut, and whether the lock is held: equal texts mean equal disks.
  // Without times, and without the contents of leases.
  std::string description() const;

  // Another user renames the folder and puts an empty folder in its place. If the folder was held, operations on names
  // in the folder then fail; a real storage would still reach the renamed folder.
  void replace_folder(const std::string& name);
  // From now on, the folder belongs to another user and is not held.
  void give_away(const std::string& name);

  // A second handle to the directory, for callers that take ownership of a Storage.
  static std::unique_ptr<Storage> view_of(ModelStorage& storage);
  // A function that returns view_of(storage), for callers that open a directory by a function.
  static std::function<Result<std::unique_ptr<Storage>>()> opening(ModelStorage& storage) {
    return [&storage]() -> Result<std::unique_ptr<Storage>> { return view_of(storage); };
  }

  // Making and removing the lock file count as operations. Waits without a limit while the lock is held.
  Result<std::unique_ptr<StorageLock>> lock() override;
  void set_stop(std::shared_ptr<const os::StopFlag>) override {}
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
  Result<void> rewrite(std::string_view name, std::string_view bytes) override;
  Result<void> touch(std::string_view name) override;
  Result<double> touched_at(std::string_view name) const override;
  // A disk of one directory: kUnsupported.
  Result<std::unique_ptr<Storage>> open_parent() const override { return one_directory(); }
  Result<std::unique_ptr<Storage>> open_folder(std::string_view) const override { return one_directory(); }
  Result<void> move_folder(std::string_view, std::string_view) override { return one_directory(); }
  Result<void> exchange_folders(std::string_view, std::string_view) override { return one_directory(); }
  Result<bool> can_exchange_folders() override { return false; }

  // The content of a file, shared by its names. `synced` is the content after a power cut; nullopt: undefined.
  struct File {
    std::string bytes;
    std::optional<std::string> synced;
    bool is_folder = false;
    bool is_of_another_user = false;
    double touched_at = 0;
  };

 private:
  static Error one_directory() { return {ErrorCode::kUnsupported, "a disk of one directory"}; }
  friend class ModelWritableFile;
  friend class ModelLock;
  using Names = std::map<std::string, std::shared_ptr<File>, std::less<>>;
  // The time of the storage's clock: each call is a millisecond later.
  double tick() { return 1e-3 * static_cast<double>(++ticks_); }
  Result<void> step();  // counts one operation, and returns the error set for its number
  Result<void> check_held(std::string_view folder) const;
  Result<void> rename(std::string_view from, std::string_view to);

  mutable std::mutex mutex_;
  bool locked_ = false;
  std::condition_variable unlocked_;
  Names names_;
  Names synced_names_;
  Names held_;  // folders
  std::uint64_t operations_ = 0;
  std::uint64_t ticks_ = 0;
  std::optional<std::uint64_t> crash_at_;
  std::optional<std::pair<std::uint64_t, Error>> fail_at_;
  bool fired_ = false;
};

}  // namespace cairn::storage

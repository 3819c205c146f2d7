// ModelStorage: a directory in memory that forgets what was not synced, and fails when it is told to. For tests.
//
// Stricter than real ones: what was not synced may be lost in any part and any order. A test drives one save through
// it, then cuts the power, then looks at what is left.
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
  // Operations that change something are numbered from 0.
  std::uint64_t operation_count() const;
  // Operation `number` fails with `error`; nothing else does.
  void fail_at(std::uint64_t number, Error error);
  // Operation `number` and all after it fail, until lose_power() or outlive_crash().
  void crash_at(std::uint64_t number);
  bool fault_fired() const;
  // Ends a crash without a power cut: the process that the crash stood for was killed, and another one goes on.
  void outlive_crash();

  // Cuts the power and starts again: of every name and every content that was not synced it depends on the seed whether
  // the old or the new one is found; unsynced contents may also be garbage. No fault is set any more.
  void lose_power(std::uint64_t seed);

  // Another user renames the folder and puts one of their own, which is empty, in its place. Whatever is done to names
  // in it then fails if the folder was held; a real storage would still reach the old one.
  void replace_folder(const std::string& name);
  // The folder belongs to another user from now on, and nobody here holds it.
  void give_away(const std::string& name);

  // Another handle to the same directory, for what takes a Storage over.
  static std::unique_ptr<Storage> view_of(ModelStorage& storage);
  // The same, for what opens a directory by a function.
  static std::function<Result<std::unique_ptr<Storage>>()> opening(ModelStorage& storage) {
    return [&storage]() -> Result<std::unique_ptr<Storage>> { return view_of(storage); };
  }

  // Makes and removes the lock file as operations; waits for another thread without a limit.
  Result<std::unique_ptr<StorageLock>> lock() override;
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

  // The bytes of a file, shared by its names. `synced` is what survives a power cut; nullopt: nobody knows what does.
  struct File {
    std::string bytes;
    std::optional<std::string> synced;
    bool is_folder = false;
    bool is_of_another_user = false;
  };

 private:
  friend class ModelWritableFile;
  friend class ModelLock;
  using Names = std::map<std::string, std::shared_ptr<File>, std::less<>>;
  Result<void> step();  // counts an operation and fails it if that is its lot
  Result<void> check_held(std::string_view folder) const;
  Result<void> rename(std::string_view from, std::string_view to);

  mutable std::mutex mutex_;
  bool locked_ = false;
  std::condition_variable unlocked_;
  Names names_;
  Names synced_names_;
  Names held_;  // folders
  std::uint64_t operations_ = 0;
  std::optional<std::uint64_t> crash_at_;
  std::optional<std::pair<std::uint64_t, Error>> fail_at_;
  bool fired_ = false;
};

}  // namespace cairn::storage

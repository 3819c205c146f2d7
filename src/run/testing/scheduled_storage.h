// ScheduledStorage: a disk as an actor of interleavings.h sees it. For tests.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "run/testing/turns.h"
#include "storage/testing/view_storage.h"

namespace cairn::run {

// A disk as an actor sees it. Calls that no other actor could notice take no turn: reads of data files, which never
// change, and everything in private folders.
class ScheduledStorage final : public storage::ViewStorage {
 public:
  ScheduledStorage(Turns& turns, std::size_t actor, storage::Storage& disk, bool may_fail)
      : ViewStorage(disk), turns_(turns), actor_(actor), disk_(disk), may_fail_(may_fail) {}

  Result<std::unique_ptr<storage::StorageLock>> lock() override {
    CAIRN_TRY(turns_.await_turn(actor_, &disk_, may_fail_));
    CAIRN_TRY_ASSIGN(auto lock, disk_.lock());
    return std::unique_ptr<storage::StorageLock>(std::make_unique<Lock>(*this, std::move(lock)));
  }
  Result<void> make_folder(std::string_view name) override {
    return change("make_folder ", name, [&] { return disk_.make_folder(name); });
  }
  Result<void> remove_folder(std::string_view name) override {
    return change("remove_folder ", name, [&] { return disk_.remove_folder(name); });
  }
  Result<std::unique_ptr<storage::WritableFile>> create(std::string_view name,
                                                        const storage::CreateOptions& options) override {
    if (turns_.is_dead(actor_)) return gone();
    return disk_.create(name, options);
  }
  Result<void> create_whole(std::string_view name, std::string_view bytes, Durability durability) override {
    return change("create ", name, [&] { return disk_.create_whole(name, bytes, durability); });
  }
  Result<std::unique_ptr<storage::ReadableFile>> open(std::string_view name, bool follow_links) const override {
    const bool takes_turn = is_shared(name) && !name.ends_with(".distcp");
    if (takes_turn) CAIRN_TRY(turns_.await_turn(actor_, nullptr, may_fail_));
    if (turns_.is_dead(actor_)) return gone();
    auto file = disk_.open(name, follow_links);
    if (takes_turn) note("open ", name, file ? content_of(**file) : file.error().what());
    return file;
  }
  Result<std::vector<storage::ListedFile>> list(std::string_view folder) const override {
    if (folder.empty()) CAIRN_TRY(turns_.await_turn(actor_, nullptr, may_fail_));
    if (turns_.is_dead(actor_)) return gone();
    auto files = disk_.list(folder);
    std::string names;
    for (const auto& file : files ? *files : std::vector<storage::ListedFile>()) names += file.name + " ";
    if (folder.empty()) note("list ", folder, names);
    return files;
  }
  Result<void> publish(std::string_view from, std::string_view to) override {
    return change("publish ", to, [&] { return disk_.publish(from, to); });
  }
  Result<void> replace(std::string_view from, std::string_view to) override {
    return change("replace ", to, [&] { return disk_.replace(from, to); });
  }
  Result<void> remove(std::string_view name) override {
    return change("remove ", name, [&] { return disk_.remove(name); });
  }
  Result<void> sync(std::string_view folder) override {
    return change("sync ", folder, [&] { return disk_.sync(folder); });
  }
  Result<void> rewrite(std::string_view name, std::string_view bytes) override {  // of the lease's thread
    if (turns_.is_dead(actor_)) return gone();
    return disk_.rewrite(name, bytes);
  }
  Result<void> touch(std::string_view name) override {
    if (turns_.is_dead(actor_)) return gone();
    return disk_.touch(name);
  }
  Result<double> touched_at(std::string_view name) const override {
    const bool takes_turn = is_shared(name) && !name.empty() && !name.ends_with(".distcp");
    if (takes_turn) CAIRN_TRY(turns_.await_turn(actor_, nullptr, may_fail_));
    if (turns_.is_dead(actor_)) return gone();
    auto time = disk_.touched_at(name);
    if (takes_turn) note("touched_at ", name, time ? "there" : time.error().what());
    return time;
  }

 private:
  class Lock final : public storage::StorageLock {
   public:
    Lock(ScheduledStorage& storage, std::unique_ptr<storage::StorageLock> lock)
        : turns_(storage.turns_), actor_(storage.actor_), disk_(&storage.disk_), lock_(std::move(lock)) {
      turns_.note_lock(actor_, disk_, true);
    }
    ~Lock() override {
      lock_.reset();
      turns_.note_lock(actor_, disk_, false);
    }
    bool is_held() const override { return lock_->is_held(); }

   private:
    Turns& turns_;
    std::size_t actor_;
    const void* disk_;
    std::unique_ptr<storage::StorageLock> lock_;
  };

  static bool is_shared(std::string_view name) { return name.find('/') == std::string_view::npos; }
  static Error gone() { return {ErrorCode::kUnavailable, "injected: the process is gone"}; }
  static std::string content_of(const storage::ReadableFile& file) {
    std::string bytes(file.size(), '\0');
    (void)file.read_at(0, std::as_writable_bytes(std::span(bytes)));
    return Turns::fingerprint_text(bytes);
  }
  void note(std::string_view call, std::string_view name, std::string_view answer) const {
    turns_.note(actor_, std::string(call) + std::string(name) + ": ", std::string(answer) + "; ");
  }
  template <typename Call>
  Result<void> change(std::string_view call, std::string_view name, Call do_call) const {
    const bool takes_turn = is_shared(name);
    if (takes_turn) CAIRN_TRY(turns_.await_turn(actor_, nullptr, may_fail_));
    if (turns_.is_dead(actor_)) return gone();
    Result<void> done = do_call();
    if (takes_turn) note(call, name, done ? "done" : done.error().what());
    return done;
  }

  Turns& turns_;
  std::size_t actor_;
  storage::Storage& disk_;
  bool may_fail_;
};

}  // namespace cairn::run

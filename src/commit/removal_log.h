// RemovalLog: a storage that forwards every call to another storage, and notes each removed file with its size; or
// removes and changes nothing, and notes each file that would be removed.
//
// A file is noted once. With kTry the calls that would change the directory succeed and do nothing: a caller that reads
// its own changes back sees the directory as it was. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/work_count.h"
#include "storage/storage.h"

namespace cairn::commit {

struct RemovedFile {
  std::string name;  // relative to the directory
  std::uint64_t bytes = 0;
};

enum class Removal : std::uint8_t { kDo, kTry };

class RemovalLog final : public storage::Storage {
 public:
  // `storage` outlives the log, and so does `count`, which gets the number of removed files; `count` may be null.
  RemovalLog(storage::Storage& storage, Removal removal, WorkCount* count = nullptr)
      : storage_(storage), tries_(removal == Removal::kTry), count_(count) {}

  // The number of files that will be removed.
  void expect(std::size_t files) {
    if (count_ != nullptr) count_->add_total(files);
  }
  bool tries() const { return tries_; }
  // The files since the last call.
  std::vector<RemovedFile> take() { return std::exchange(files_, {}); }
  // Whether the directory holds more than the removed files, or with kTry more than those that would be removed.
  Result<bool> leaves_files() const;

  Result<std::unique_ptr<storage::StorageLock>> lock() override;
  void set_stop(std::shared_ptr<const os::StopFlag> stop) override { storage_.set_stop(std::move(stop)); }
  Result<void> make_folder(std::string_view name) override;
  Result<void> join_folder(std::string_view name) override { return storage_.join_folder(name); }
  Result<void> remove_folder(std::string_view name) override;
  Result<std::unique_ptr<storage::WritableFile>> create(std::string_view name,
                                                        const storage::CreateOptions& options) override;
  Result<void> create_whole(std::string_view name, std::string_view bytes, Durability durability) override;
  Result<std::unique_ptr<storage::ReadableFile>> open(std::string_view name, bool follow_links) const override {
    return storage_.open(name, follow_links);
  }
  Result<std::vector<storage::ListedFile>> list(std::string_view folder) const override {
    return storage_.list(folder);
  }
  Result<void> publish(std::string_view from, std::string_view to) override;
  Result<void> replace(std::string_view from, std::string_view to) override;
  Result<void> remove(std::string_view name) override;
  Result<void> sync(std::string_view folder) override;
  Result<void> rewrite(std::string_view name, std::string_view bytes) override;
  Result<void> touch(std::string_view name) override;
  Result<double> touched_at(std::string_view name) const override { return storage_.touched_at(name); }
  Result<std::unique_ptr<storage::Storage>> open_parent() const override { return storage_.open_parent(); }
  Result<std::unique_ptr<storage::Storage>> open_folder(std::string_view name) const override {
    return storage_.open_folder(name);
  }
  Result<void> move_folder(std::string_view, std::string_view) override { return not_logged(); }
  Result<void> exchange_folders(std::string_view, std::string_view) override { return not_logged(); }
  Result<bool> can_exchange_folders() override { return not_logged(); }
  bool has_rename() const override { return storage_.has_rename(); }
  Result<storage::TaggedContent> read_tagged(std::string_view name, std::uint64_t bytes_max) const override {
    return storage_.read_tagged(name, bytes_max);
  }
  Result<storage::WriteOutcome> write_if(std::string_view name, std::string_view bytes,
                                         const storage::WriteCondition& condition) override {
    return tries_ ? storage::WriteOutcome() : storage_.write_if(name, bytes, condition);
  }
  Result<storage::WriteOutcome> remove_if(std::string_view name, const std::string& tag) override;
  Result<double> now() const override { return storage_.now(); }
  Result<bool> keeps_conditions() override { return storage_.keeps_conditions(); }
  Result<void> abandon_writes(const std::function<bool(std::string_view name)>& is_abandoned) override {
    return tries_ ? Result<void>() : storage_.abandon_writes(is_abandoned);
  }
  std::vector<Error> remove_all(std::span<const std::string> names) override;

 private:
  std::optional<std::uint64_t> bytes_of(std::string_view name) const;
  void note(std::string_view name, std::optional<std::uint64_t> bytes);
  static Error not_logged() { return {ErrorCode::kInternal, "a removal that moves folders"}; }

  storage::Storage& storage_;
  bool tries_;
  WorkCount* count_;
  std::vector<RemovedFile> files_;
  std::set<std::string, std::less<>> noted_;
};

}  // namespace cairn::commit

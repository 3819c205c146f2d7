#include "commit/removal_log.h"

#include <algorithm>
#include <optional>

namespace cairn::commit {

Result<bool> RemovalLog::leaves_files() const {
  CAIRN_TRY_ASSIGN(const std::vector<storage::ListedFile> files, storage_.list());
  return std::any_of(files.begin(), files.end(), [this](const storage::ListedFile& file) {
    return file.name != storage::kLockName && !noted_.contains(file.name);
  });
}

Result<std::unique_ptr<storage::StorageLock>> RemovalLog::lock() {
  if (tries_) return std::unique_ptr<storage::StorageLock>();
  return storage_.lock();
}

Result<void> RemovalLog::make_folder(std::string_view name) {
  return tries_ ? Result<void>() : storage_.make_folder(name);
}

Result<void> RemovalLog::remove_folder(std::string_view name) {
  return tries_ ? Result<void>() : storage_.remove_folder(name);
}

// A file can't be written without a change.
Result<std::unique_ptr<storage::WritableFile>> RemovalLog::create(std::string_view name,
                                                                  const storage::CreateOptions& options) {
  if (tries_) return Error(ErrorCode::kUnsupported, "a trial of removals writes no file").file(name);
  return storage_.create(name, options);
}

Result<void> RemovalLog::create_whole(std::string_view name, std::string_view bytes, Durability durability) {
  return tries_ ? Result<void>() : storage_.create_whole(name, bytes, durability);
}

Result<void> RemovalLog::publish(std::string_view from, std::string_view to) {
  return tries_ ? Result<void>() : storage_.publish(from, to);
}

Result<void> RemovalLog::replace(std::string_view from, std::string_view to) {
  return tries_ ? Result<void>() : storage_.replace(from, to);
}

Result<void> RemovalLog::remove(std::string_view name) {
  std::optional<std::uint64_t> bytes;
  if (const auto file = storage_.open(name, false)) bytes = (*file)->size();
  if (!tries_) CAIRN_TRY(storage_.remove(name));
  if (name == storage::kLockName) return {};  // of this removal
  if (count_ != nullptr) count_->add_done(1);
  if (noted_.emplace(name).second && bytes) files_.push_back({std::string(name), *bytes});
  return {};
}

Result<void> RemovalLog::sync(std::string_view folder) { return tries_ ? Result<void>() : storage_.sync(folder); }

Result<void> RemovalLog::rewrite(std::string_view name, std::string_view bytes) {
  return tries_ ? Result<void>() : storage_.rewrite(name, bytes);
}

Result<void> RemovalLog::touch(std::string_view name) { return tries_ ? Result<void>() : storage_.touch(name); }

}  // namespace cairn::commit

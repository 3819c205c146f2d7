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
  const std::optional<std::uint64_t> bytes = bytes_of(name);
  if (!tries_) CAIRN_TRY(storage_.remove(name));
  note(name, bytes);
  return {};
}

Result<storage::WriteOutcome> RemovalLog::remove_if(std::string_view name, const std::string& tag) {
  const std::optional<std::uint64_t> bytes = bytes_of(name);
  storage::WriteOutcome outcome;
  if (!tries_) {
    CAIRN_TRY_ASSIGN(outcome, storage_.remove_if(name, tag));
  }
  if (outcome.kind == storage::WriteOutcome::Kind::kWritten) note(name, bytes);
  return outcome;
}

std::vector<Error> RemovalLog::remove_all(std::span<const std::string> names) {
  std::vector<std::optional<std::uint64_t>> bytes;
  for (const std::string& name : names) bytes.push_back(bytes_of(name));
  std::vector<Error> failures;
  if (!tries_) failures = storage_.remove_all(names);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto of_name = [&](const Error& error) { return error.file() && error.file()->ends_with(names[i]); };
    if (std::none_of(failures.begin(), failures.end(), of_name)) note(names[i], bytes[i]);
  }
  return failures;
}

std::optional<std::uint64_t> RemovalLog::bytes_of(std::string_view name) const {
  const auto file = storage_.open(name, false);
  return file ? std::optional((*file)->size()) : std::nullopt;
}

void RemovalLog::note(std::string_view name, std::optional<std::uint64_t> bytes) {
  if (name == storage::kLockName) return;  // of this removal
  if (count_ != nullptr) count_->add_done(1);
  if (noted_.emplace(name).second && bytes) files_.push_back({std::string(name), *bytes});
}

Result<void> RemovalLog::sync(std::string_view folder) { return tries_ ? Result<void>() : storage_.sync(folder); }

Result<void> RemovalLog::rewrite(std::string_view name, std::string_view bytes) {
  return tries_ ? Result<void>() : storage_.rewrite(name, bytes);
}

Result<void> RemovalLog::touch(std::string_view name) { return tries_ ? Result<void>() : storage_.touch(name); }

}  // namespace cairn::commit

#include "storage/open_directory.h"

#include <system_error>

#include "storage/posix/posix_storage.h"

namespace cairn::storage {

namespace fs = std::filesystem;

Result<std::unique_ptr<Storage>> open_directory(const fs::path& directory, std::optional<mode_t> umask) {
  CAIRN_TRY_ASSIGN(std::unique_ptr<Storage> storage, PosixStorage::open_directory(directory, umask));
  return storage;
}

Result<std::unique_ptr<Storage>> make_directory(const fs::path& directory, std::optional<mode_t> umask) {
  CAIRN_TRY_ASSIGN(std::unique_ptr<Storage> storage, PosixStorage::make_directory(directory, umask));
  return storage;
}

Result<std::optional<std::vector<fs::path>>> directories_in(const fs::path& root) {
  std::error_code error;
  fs::directory_iterator entry(root, error);
  if (error == std::errc::no_such_file_or_directory) return std::optional<std::vector<fs::path>>();
  if (error == std::errc::not_a_directory) {
    return Error(ErrorCode::kInvalidArgument, "the root of the checkpoints is not a directory").file(root.string());
  }
  std::vector<fs::path> found;
  for (const fs::directory_iterator end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_directory(ignored)) found.push_back(entry->path());
  }
  if (error) return Error::from_errno(error.value(), "listing the checkpoints failed").file(root.string());
  return std::optional(std::move(found));
}

}  // namespace cairn::storage

#include "storage/open_directory.h"

#include <cairn/bucket_url.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "storage/bucket/process_buckets.h"
#include "storage/posix/posix_storage.h"
#include "storage/staleness.h"

namespace cairn::storage {

namespace fs = std::filesystem;

Result<std::unique_ptr<Storage>> open_directory(const fs::path& directory, std::optional<mode_t> umask) {
  if (is_bucket_url(directory)) return open_bucket(directory.string());
  CAIRN_TRY_ASSIGN(std::unique_ptr<Storage> storage, PosixStorage::open_directory(directory, umask));
  return storage;
}

Result<std::unique_ptr<Storage>> make_directory(const fs::path& directory, std::optional<mode_t> umask) {
  if (is_bucket_url(directory)) return open_bucket(directory.string());
  CAIRN_TRY_ASSIGN(std::unique_ptr<Storage> storage, PosixStorage::make_directory(directory, umask));
  return storage;
}

namespace {

// False for a link to a file or to itself, and for a pipe or a device. A directory that may not be opened is one.
bool may_lead_to_directory(const fs::path& path) {
  const auto opened = open_directory(path);
  if (opened) return true;
  const int error = opened.error().error_number();
  return error != ENOTDIR && error != ELOOP;
}

std::string without_slashes(std::string url) {
  while (url.ends_with('/')) url.pop_back();
  return url;
}

std::vector<std::string> folders_named(const Storage& storage, std::string_view prefix) {
  std::vector<std::string> found;
  const Result<std::vector<ListedFile>> files = storage.list("");
  if (!files) return found;
  for (const ListedFile& file : *files) {
    if (file.is_folder && file.name.starts_with(prefix)) found.push_back(file.name);
  }
  return found;
}

}  // namespace

Result<std::optional<std::vector<fs::path>>> directories_in(const fs::path& root) {
  const Result<std::unique_ptr<Storage>> storage = open_directory(root);
  if (!storage && is_absent(storage.error())) return std::optional<std::vector<fs::path>>();
  if (!storage && storage.error().error_number() == ENOTDIR) {
    return Error(ErrorCode::kInvalidArgument, "the root of the checkpoints is not a directory").file(root.string());
  }
  if (!storage) return unavailable_if_stale(storage.error());
  Result<std::vector<ListedFile>> files = (*storage)->list();
  if (!files) return std::move(files).error().while_doing("listing the checkpoints in '" + root.string() + "'");
  if (files->empty() && is_bucket_url(root)) return std::optional<std::vector<fs::path>>();
  std::vector<fs::path> found;
  for (const ListedFile& file : *files) {
    const fs::path path = root / file.name;
    const bool is_link = !file.is_folder && !file.is_regular;  // or a pipe or a device, which is no directory
    if (file.is_folder || (is_link && may_lead_to_directory(path))) found.push_back(path);
  }
  return std::optional(std::move(found));
}

fs::path resolved(const fs::path& directory) {
  if (is_bucket_url(directory)) return without_slashes(directory.string());
  std::error_code failed;
  fs::path path = fs::weakly_canonical(fs::absolute(directory, failed), failed);
  if (failed) path = fs::absolute(directory);
  return path.has_filename() ? path : path.parent_path();
}

std::vector<std::string> directories_named(const fs::path& root, std::string_view prefix) {
  std::vector<std::string> found;
  const Result<std::unique_ptr<Storage>> storage = open_directory(root);
  if (!storage) return found;
  if (is_bucket_url(root)) return folders_named(**storage, prefix);
  (void)(*storage)->touched_at("");  // a network file system may remember the old names
  std::error_code error;
  for (fs::directory_iterator entry(root, error); !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::string name = entry->path().filename().string();
    std::error_code unknown;
    if (name.starts_with(prefix) && fs::is_directory(entry->symlink_status(unknown))) found.push_back(std::move(name));
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace cairn::storage

#include "storage/posix/posix_storage.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

#include "storage/posix/exclusive_rename.h"
#include "storage/posix/open_beneath.h"
#include "storage/posix/posix_file.h"

namespace cairn::storage {
namespace {

constexpr std::chrono::seconds kLockPatience{30};
constexpr std::chrono::milliseconds kLockRetry{5};
constexpr mode_t kFileMode = 0666;    // less the umask
constexpr mode_t kFolderMode = 0777;  // less the umask

Error failed(std::string_view action, std::string_view name) {
  return Error::from_errno(errno, std::string(action) + " failed").file(name);
}

// Writes a new small file, all of it.
Result<void> fill(const os::Fd& fd, std::string_view name, std::string_view bytes, Durability durability) {
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t written = pwrite(fd.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failed("writing", name).offset(done);
    done += static_cast<std::size_t>(written);
  }
  if (durability == Durability::kDurable && fsync(fd.get()) != 0) return failed("syncing", name);
  return {};
}

// Gives a file that was opened with O_TMPFILE its name; as linkat(2).
int name_nameless(const os::Fd& fd, int directory, const std::string& path) {
  const std::string self = "/proc/self/fd/" + std::to_string(fd.get());
  const int named = linkat(AT_FDCWD, self.c_str(), directory, path.c_str(), AT_SYMLINK_FOLLOW);
  if (named == 0 || errno == EEXIST) return named;
  return linkat(fd.get(), "", directory, path.c_str(), AT_EMPTY_PATH);  // needs no /proc, but often a capability
}

class DirectoryLock final : public StorageLock {
 public:
  explicit DirectoryLock(os::Fd fd) : fd_(std::move(fd)) {}
  // Closing alone would not do: a child that was forked meanwhile holds the same open file.
  ~DirectoryLock() override { flock(fd_.get(), LOCK_UN); }

 private:
  os::Fd fd_;
};

Result<os::Fd> open_directory_fd(const std::filesystem::path& directory) {
  os::Fd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return failed("opening the directory", directory.string());
  return fd;
}

// The name of the directory must last too, whoever made it. Not ours to sync is a parent that we may not open, that
// lies in another file system (the directory is a mount point), or whose file system can't sync a directory.
Result<void> sync_parent(const os::Fd& directory) {
  const os::Fd parent(openat(directory.get(), "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!parent) return {};
  struct stat own {
  }, above{};
  const bool is_mount_point =
      fstat(directory.get(), &own) == 0 && fstat(parent.get(), &above) == 0 && own.st_dev != above.st_dev;
  if (is_mount_point || fsync(parent.get()) == 0 || errno == EINVAL || errno == EROFS) return {};
  return failed("syncing a parent directory", "..");
}

}  // namespace

Result<std::unique_ptr<PosixStorage>> PosixStorage::open_directory(const std::filesystem::path& directory) {
  CAIRN_TRY_ASSIGN(os::Fd fd, open_directory_fd(directory));
  return std::unique_ptr<PosixStorage>(new PosixStorage(std::move(fd), {}));
}

Result<std::unique_ptr<PosixStorage>> PosixStorage::make_directory(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> missing;  // innermost first
  std::error_code ignored;
  std::filesystem::path next = directory.has_filename() ? directory : directory.parent_path();
  while (!next.empty() && !std::filesystem::exists(next, ignored)) {
    missing.push_back(next);
    next = next.parent_path();
  }
  std::vector<os::Fd> parents;
  for (auto path = missing.rbegin(); path != missing.rend(); ++path) {
    if (::mkdir(path->c_str(), kFolderMode) != 0 && errno != EEXIST)
      return failed("making the directory", path->string());
    CAIRN_TRY_ASSIGN(os::Fd parent, open_directory_fd(path->has_parent_path() ? path->parent_path() : "."));
    parents.push_back(std::move(parent));
  }
  CAIRN_TRY_ASSIGN(os::Fd fd, open_directory_fd(directory));
  return std::unique_ptr<PosixStorage>(new PosixStorage(std::move(fd), std::move(parents)));
}

Result<std::unique_ptr<StorageLock>> PosixStorage::lock() {
  // A descriptor of its own: flock belongs to the open file, and this object may be locked from two threads.
  os::Fd fd(openat(directory_->get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return failed("opening the directory", ".");
  const auto deadline = std::chrono::steady_clock::now() + kLockPatience;
  while (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return std::unique_ptr<StorageLock>();  // no locks here: do without
    if (std::chrono::steady_clock::now() > deadline) {
      return Error(ErrorCode::kUnavailable, "the directory is locked by another process");
    }
    std::this_thread::sleep_for(kLockRetry);
  }
  return std::unique_ptr<StorageLock>(std::make_unique<DirectoryLock>(std::move(fd)));
}

Result<void> PosixStorage::make_folder(std::string_view name) {
  CAIRN_TRY(check_name(name));
  if (mkdirat(directory_->get(), std::string(name).c_str(), kFolderMode) != 0) return failed("making a folder", name);
  return {};
}

Result<void> PosixStorage::remove_folder(std::string_view name) {
  CAIRN_TRY(check_name(name));
  if (unlinkat(directory_->get(), std::string(name).c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT) {
    return failed("removing a folder", name);
  }
  return {};
}

Result<std::unique_ptr<WritableFile>> PosixStorage::create(std::string_view name, const CreateOptions& options) {
  CAIRN_TRY(check_name(name));
  return create_posix_file(directory_->get(), std::string(name), kFileMode, options);
}

Result<void> PosixStorage::create_whole(std::string_view name, std::string_view bytes, Durability durability) {
  CAIRN_TRY(check_name(name));
  const std::filesystem::path path(name);
  const std::string folder = path.has_parent_path() ? path.parent_path().string() : ".";
  const int directory = directory_->get();
  // A file without a name is filled first and then given one. Where that can't be, it is filled under its name.
  os::Fd fd(openat(directory, folder.c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, kFileMode));
  bool named = false;
  if (fd) {
    CAIRN_TRY(fill(fd, name, bytes, durability));
    named = name_nameless(fd, directory, path.string()) == 0;
    if (!named && errno == EEXIST) return failed("naming", name);
  }
  if (!named) {
    fd = os::Fd(openat(directory, path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kFileMode));
    if (!fd) return failed("creating", name);
    if (auto filled = fill(fd, name, bytes, durability); !filled) {
      unlinkat(directory, path.c_str(), 0);
      return filled;
    }
  }
  if (auto closed = std::move(fd).close(); !closed) return std::move(closed).error().file(name);
  return {};
}

Result<std::unique_ptr<ReadableFile>> PosixStorage::open(std::string_view name, bool follow_links) const {
  CAIRN_TRY(check_name(name));
  const std::string path(name);
  const auto open_for_reading = [directory = directory_, path, follow_links](int more_flags) -> Result<os::Fd> {
    // Without O_NONBLOCK the opening of a pipe waits for its other end.
    const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | more_flags;
    os::Fd fd(follow_links ? openat(directory->get(), path.c_str(), flags)
                           : open_beneath(directory->get(), path, flags));
    if (fd) return fd;
    const bool link = !follow_links && (errno == ELOOP || errno == EXDEV);
    if (link) return Error(ErrorCode::kUnsafe, "a link in place of a file (follow_links allows it)").file(path);
    return failed("opening", path);
  };
  return open_posix_file(descriptors_, open_for_reading, path);
}

Result<std::vector<ListedFile>> PosixStorage::list(std::string_view folder) const {
  const std::string path = folder.empty() ? "." : std::string(folder);
  if (!folder.empty()) CAIRN_TRY(check_name(folder));
  const int fd = open_beneath(directory_->get(), path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return failed("listing", path);
  struct CloseDirectory {
    void operator()(DIR* stream) const { closedir(stream); }
  };
  const std::unique_ptr<DIR, CloseDirectory> stream(fdopendir(fd));
  if (!stream) {
    ::close(fd);
    return failed("listing", path);
  }
  std::vector<ListedFile> files;
  errno = 0;
  while (const dirent* item = readdir(stream.get())) {
    const std::string_view name = item->d_name;
    if (name == "." || name == "..") continue;
    struct stat status {};
    const bool seen = fstatat(fd, item->d_name, &status, AT_SYMLINK_NOFOLLOW) == 0;
    // Gone meanwhile. After any other error the file may be there: callers would take its name for free.
    if (!seen && errno != ENOENT)
      return failed("looking at", path == "." ? std::string(name) : path + "/" + item->d_name);
    if (seen) files.push_back({std::string(name), S_ISDIR(status.st_mode), S_ISREG(status.st_mode)});
    errno = 0;
  }
  if (errno != 0) return failed("listing", path);
  return files;
}

Result<void> PosixStorage::publish(std::string_view from, std::string_view to) {
  CAIRN_TRY(check_name(from));
  CAIRN_TRY(check_name(to));
  return rename_exclusively(directory_->get(), std::string(from), std::string(to));
}

Result<void> PosixStorage::replace(std::string_view from, std::string_view to) {
  CAIRN_TRY(check_name(from));
  CAIRN_TRY(check_name(to));
  const int directory = directory_->get();
  if (renameat(directory, std::string(from).c_str(), directory, std::string(to).c_str()) != 0) {
    return failed("renaming", to);
  }
  return {};
}

Result<void> PosixStorage::remove(std::string_view name) {
  CAIRN_TRY(check_name(name));
  const std::filesystem::path path(name);
  const std::string folder = path.has_parent_path() ? path.parent_path().string() : ".";
  const std::string file = path.filename().string();
  const os::Fd parent(open_beneath(directory_->get(), folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!parent && errno == ENOENT) return {};
  if (!parent) return failed("removing", name);
  struct stat status {};
  if (fstatat(parent.get(), file.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    return errno == ENOENT ? Result<void>() : Result<void>(failed("removing", name));
  }
  if (!S_ISREG(status.st_mode)) return Error(ErrorCode::kUnsafe, "not a regular file: left alone").file(name);
  if (unlinkat(parent.get(), file.c_str(), 0) != 0 && errno != ENOENT) return failed("removing", name);
  return {};
}

Result<void> PosixStorage::sync(std::string_view folder) {
  if (folder.empty()) {
    for (const os::Fd& parent : parents_of_made_) {
      if (fsync(parent.get()) != 0) return failed("syncing a parent directory", "..");
    }
    parents_of_made_.clear();
    if (!parent_synced_) CAIRN_TRY(sync_parent(*directory_));
    parent_synced_ = true;
    if (fsync(directory_->get()) != 0) return failed("syncing the directory", ".");
    return {};
  }
  CAIRN_TRY(check_name(folder));
  const os::Fd fd(open_beneath(directory_->get(), std::string(folder), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return failed("opening the folder", folder);
  if (fsync(fd.get()) != 0) return failed("syncing the folder", folder);
  return {};
}

Result<void> PosixStorage::touch(std::string_view name) {
  CAIRN_TRY(check_name(name));
  if (utimensat(directory_->get(), std::string(name).c_str(), nullptr, AT_SYMLINK_NOFOLLOW) != 0) {
    return failed("touching", name);
  }
  return {};
}

Result<double> PosixStorage::touched_at(std::string_view name) const {
  CAIRN_TRY(check_name(name));
  struct stat status {};
  if (fstatat(directory_->get(), std::string(name).c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    return failed("looking at", name);
  }
  return static_cast<double>(status.st_mtim.tv_sec) + 1e-9 * static_cast<double>(status.st_mtim.tv_nsec);
}

}  // namespace cairn::storage

#include "storage/posix/posix_storage.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>

#include "storage/posix/descriptor_path.h"
#include "storage/posix/directory_lock.h"
#include "storage/posix/exclusive_rename.h"
#include "storage/posix/failed_call.h"
#include "storage/posix/open_beneath.h"
#include "storage/posix/posix_file.h"

namespace cairn::storage {
namespace {

// A file server releases the locks of a crashed client after one or two minutes.
constexpr std::chrono::minutes kLockPatience{3};
constexpr mode_t kFileMode = 0666;    // minus the umask
constexpr mode_t kFolderMode = 0777;  // minus the umask

Error nothing_written(std::string_view name, std::uint64_t offset) {
  return Error(ErrorCode::kUnavailable, "writing failed: the file system accepted no byte").file(name).offset(offset);
}

// Writes `bytes` to the start of the file, and syncs the file if durable.
Result<void> fill(const os::Fd& fd, std::string_view name, std::string_view bytes, Durability durability) {
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t written = pwrite(fd.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failed("writing", name).offset(done);
    if (written == 0) return nothing_written(name, done);
    done += static_cast<std::size_t>(written);
  }
  if (durability == Durability::kDurable && fsync(fd.get()) != 0) return failed("syncing", name);
  return {};
}

// Names a file that was opened with O_TMPFILE. Returns as linkat(2).
int name_nameless(const os::Fd& fd, int directory, const std::string& path) {
  const std::string self = "/proc/self/fd/" + std::to_string(fd.get());
  const int named = linkat(AT_FDCWD, self.c_str(), directory, path.c_str(), AT_SYMLINK_FOLLOW);
  if (named == 0 || errno == EEXIST) return named;
  return linkat(fd.get(), "", directory, path.c_str(),
                AT_EMPTY_PATH);  // works without /proc, but often needs a capability
}

Result<os::Fd> open_directory_fd(const std::filesystem::path& directory) {
  os::Fd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd) return fd;
  if (errno != ENOTDIR) return failed("opening the directory", directory.string());
  return Error(ErrorCode::kInvalidArgument, "a file is in the place of the directory: choose another directory")
      .file(directory.string())
      .error_number(ENOTDIR);
}

// Makes a network file system fetch the attributes of the folder from the server. If the attributes have changed, the
// client drops its cached names of the folder, including the names cached as missing. Without the call the client may
// use its cache for a minute.
Result<void> refresh(int folder, const std::string& name) {
  struct statx status {};
  const bool asked = statx(folder, "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, &status) == 0;
  if (asked || (errno != ESTALE && errno != ENOENT)) return {};
  return failed("listing", name);
}

// Completes `file`, which has its name. False: the file was removed after its name had been read. Any different failure
// is an error: the file may exist, and a list without the file would make callers treat its name as free.
Result<bool> look_up(int folder, const std::string& folder_name, ListedFile& file) {
  // ESTALE: a different host removed or replaced the file. The next lookup asks the server for the name again.
  constexpr int kTriesMax = 3;
  struct stat status {};
  int failed_with = 0;
  for (int tries = 0; tries == 0 || (tries < kTriesMax && failed_with == ESTALE); ++tries) {
    failed_with = fstatat(folder, file.name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 ? 0 : errno;
  }
  if (failed_with == ENOENT) return false;
  if (failed_with == 0) {
    file.is_folder = S_ISDIR(status.st_mode);
    file.is_regular = S_ISREG(status.st_mode);
    return true;
  }
  CAIRN_TRY(refresh(folder, folder_name));  // the error of a removed folder
  // Not kNotFound, the code of from_errno() for ESTALE: kNotFound from list() means that the folder is gone.
  return Error(ErrorCode::kUnavailable, std::string("reading the attributes failed: ") + std::strerror(failed_with))
      .error_number(failed_with)
      .file(folder_name == "." ? file.name : folder_name + "/" + file.name);
}

Error parent_not_synced(const os::Fd& parent) {
  const int error = errno;
  const std::string path = descriptor_path(parent.get()).string();
  errno = error;
  return failed("syncing a parent directory", path.empty() ? ".." : path);
}

// Syncs the parent, for the name of the directory to survive a power cut, whichever process made the directory. Skips a
// parent that this process may not open, a parent in a different file system (the directory is a mount point), and a
// parent whose file system can't sync directories.
Result<void> sync_parent(const os::Fd& directory) {
  const os::Fd parent(openat(directory.get(), "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!parent) return {};
  struct stat own {
  }, above{};
  const bool is_mount_point =
      fstat(directory.get(), &own) == 0 && fstat(parent.get(), &above) == 0 && own.st_dev != above.st_dev;
  if (is_mount_point || fsync(parent.get()) == 0 || errno == EINVAL || errno == EROFS) return {};
  return parent_not_synced(parent);
}

// Returns false and sets errno on failure.
bool make_masked_folder(int directory, const std::string& name, const CreationMask& mask) {
  if (mkdirat(directory, name.c_str(), mask.bits_for(kFolderMode)) != 0) return false;
  const os::Fd made(openat(directory, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (made) mask.restore(made.get(), kFolderMode);
  return true;
}

}  // namespace

Result<std::unique_ptr<PosixStorage>> PosixStorage::open_directory(const std::filesystem::path& directory,
                                                                   std::optional<mode_t> umask) {
  CAIRN_TRY_ASSIGN(os::Fd fd, open_directory_fd(directory));
  return std::unique_ptr<PosixStorage>(new PosixStorage(std::move(fd), {}, umask));
}

Result<std::unique_ptr<PosixStorage>> PosixStorage::make_directory(const std::filesystem::path& directory,
                                                                   std::optional<mode_t> umask) {
  std::vector<std::filesystem::path> missing;  // innermost first
  std::error_code ignored;
  std::filesystem::path next = directory.has_filename() ? directory : directory.parent_path();
  while (!next.empty() && !std::filesystem::exists(next, ignored)) {
    missing.push_back(next);
    next = next.parent_path();
  }
  std::vector<os::Fd> parents;
  for (auto path = missing.rbegin(); path != missing.rend(); ++path) {
    CAIRN_TRY_ASSIGN(os::Fd parent, open_directory_fd(path->has_parent_path() ? path->parent_path() : "."));
    if (!make_masked_folder(parent.get(), path->filename().string(), CreationMask(umask, parent.get())) &&
        errno != EEXIST) {
      return failed("making the directory", path->string());
    }
    parents.push_back(std::move(parent));
  }
  CAIRN_TRY_ASSIGN(os::Fd fd, open_directory_fd(directory));
  return std::unique_ptr<PosixStorage>(new PosixStorage(std::move(fd), std::move(parents), umask));
}

Result<std::unique_ptr<StorageLock>> PosixStorage::lock() {
  return lock_directory(directory_, kLockPatience, stop_.get());
}

Result<PosixStorage::Place> PosixStorage::place_of(std::string_view name) const {
  CAIRN_TRY(check_name(name));
  const std::size_t slash = name.rfind('/');
  if (slash == std::string_view::npos) return Place{directory_, std::string(name)};
  const std::string folder(name.substr(0, slash));
  Place place{folders_.find(folder), std::string(name.substr(slash + 1))};
  if (place.folder) return place;
  place.folder =
      std::make_shared<const os::Fd>(open_beneath(directory_->get(), folder, O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!*place.folder) return failed("opening a folder", folder);
  return place;
}

Result<void> PosixStorage::make_folder(std::string_view name) {
  CAIRN_TRY(check_name(name));
  return folders_.make(std::string(name));
}

Result<void> PosixStorage::join_folder(std::string_view name) {
  CAIRN_TRY(check_name(name));
  return folders_.join(std::string(name));
}

Result<void> PosixStorage::remove_folder(std::string_view name) {
  CAIRN_TRY(check_name(name));
  const std::string folder(name);
  Result<void> same = folders_.check(folder);
  if (!same && same.error().code() != ErrorCode::kNotFound) return same;
  if (unlinkat(directory_->get(), folder.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT) {
    return failed("removing a folder", name);
  }
  folders_.forget(folder);
  return {};
}

Result<std::unique_ptr<WritableFile>> PosixStorage::create(std::string_view name, const CreateOptions& options) {
  CAIRN_TRY_ASSIGN(const Place place, place_of(name));
  return create_posix_file({place.folder->get(), place.name}, std::string(name), {kFileMode, mask_}, options);
}

Result<void> PosixStorage::create_whole(std::string_view name, std::string_view bytes, Durability durability) {
  CAIRN_TRY_ASSIGN(const Place place, place_of(name));
  const int folder = place.folder->get();
  // Fill a nameless file first, then name the file. If the file system has no nameless files, create the name first and
  // fill the file afterwards.
  os::Fd fd(openat(folder, ".", O_WRONLY | O_TMPFILE | O_CLOEXEC, mask_.bits_for(kFileMode)));
  bool named = false;
  if (fd) {
    mask_.restore(fd.get(), kFileMode);
    CAIRN_TRY(fill(fd, name, bytes, durability));
    named = name_nameless(fd, folder, place.name) == 0;
    if (!named && errno == EEXIST) return failed("naming", name);
  }
  if (!named) {
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    fd = os::Fd(openat(folder, place.name.c_str(), flags, mask_.bits_for(kFileMode)));
    if (!fd) return failed("creating", name);
    mask_.restore(fd.get(), kFileMode);
    if (auto filled = fill(fd, name, bytes, durability); !filled) {
      unlinkat(folder, place.name.c_str(), 0);
      return filled;
    }
  }
  if (auto closed = std::move(fd).close(); !closed) return std::move(closed).error().file(name);
  return {};
}

Result<std::unique_ptr<ReadableFile>> PosixStorage::open(std::string_view name, bool follow_links) const {
  CAIRN_TRY(check_name(name));
  const std::string path(name);
  const std::size_t slash = path.rfind('/');
  const auto held = slash == std::string::npos ? nullptr : folders_.find(path.substr(0, slash));
  const auto open_for_reading = [directory = held ? held : directory_, below = held ? path.substr(slash + 1) : path,
                                 path, follow_links](int more_flags) -> Result<os::Fd> {
    // Without O_NONBLOCK, opening a pipe waits for a process at the far end.
    const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | more_flags;
    os::Fd fd(follow_links ? openat(directory->get(), below.c_str(), flags)
                           : open_beneath(directory->get(), below, flags));
    if (fd) return fd;
    const bool link = !follow_links && (errno == ELOOP || errno == EXDEV);
    if (link) {
      return Error(ErrorCode::kUnsafe, "a link in place of a file, which must be allowed (option follow_links)")
          .file(path);
    }
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
  CAIRN_TRY(folders_.check_opened(path, fd));
  CAIRN_TRY(refresh(fd, path));
  std::vector<ListedFile> files;
  errno = 0;
  while (const dirent* item = readdir(stream.get())) {
    const std::string_view name = item->d_name;
    if (name == "." || name == "..") continue;
    ListedFile file{std::string(name)};
    CAIRN_TRY_ASSIGN(const bool is_there, look_up(fd, path, file));
    if (is_there) files.push_back(std::move(file));
    errno = 0;
  }
  if (errno != 0) return failed("listing", path);
  return files;
}

Result<void> PosixStorage::publish(std::string_view from, std::string_view to) {
  CAIRN_TRY_ASSIGN(const Place old_place, place_to_move_from(from));
  CAIRN_TRY_ASSIGN(const Place new_place, place_of(to));
  return rename_exclusively({old_place.folder->get(), old_place.name}, {new_place.folder->get(), new_place.name});
}

// A private file stays private when a new file replaces it.
Result<void> PosixStorage::take_mode(const Place& replaced, const Place& file, std::string_view name) {
  constexpr mode_t kPermissions = 0777;
  struct stat old_status {};
  struct stat new_status {};
  if (fstatat(replaced.folder->get(), replaced.name.c_str(), &old_status, AT_SYMLINK_NOFOLLOW) != 0) return {};
  if (fstatat(file.folder->get(), file.name.c_str(), &new_status, AT_SYMLINK_NOFOLLOW) != 0) return {};
  const mode_t mode = old_status.st_mode & kPermissions;
  if (!S_ISREG(old_status.st_mode) || !S_ISREG(new_status.st_mode) || mode == (new_status.st_mode & kPermissions)) {
    return {};
  }
  if (fchmodat(file.folder->get(), file.name.c_str(), mode, 0) == 0) return {};
  const bool has_no_modes = errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS;  // of some file systems
  return has_no_modes ? Result<void>() : Result<void>(failed("setting the mode", name));
}

Result<void> PosixStorage::replace(std::string_view from, std::string_view to) {
  CAIRN_TRY_ASSIGN(const Place old_place, place_to_move_from(from));
  CAIRN_TRY_ASSIGN(const Place new_place, place_of(to));
  CAIRN_TRY(take_mode(new_place, old_place, from));
  if (renameat(old_place.folder->get(), old_place.name.c_str(), new_place.folder->get(), new_place.name.c_str()) != 0) {
    return failed("renaming", to);
  }
  return {};
}

Result<PosixStorage::Place> PosixStorage::place_to_move_from(std::string_view name) const {
  if (const std::size_t slash = name.rfind('/'); slash != std::string_view::npos) {
    CAIRN_TRY(folders_.check(std::string(name.substr(0, slash))));
  }
  return place_of(name);
}

Result<void> PosixStorage::remove(std::string_view name) {
  const Result<Place> place = place_of(name);
  if (!place && place.error().code() == ErrorCode::kNotFound) return {};
  if (!place) return place.error();
  struct stat status {};
  if (fstatat(place->folder->get(), place->name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    return errno == ENOENT || errno == ESTALE ? Result<void>() : Result<void>(failed("removing", name));
  }
  if (!S_ISREG(status.st_mode))
    return Error(ErrorCode::kUnsafe, "not a regular file: neither changed nor removed").file(name);
  if (unlinkat(place->folder->get(), place->name.c_str(), 0) != 0 && errno != ENOENT && errno != ESTALE) {
    return failed("removing", name);
  }
  return {};
}

Result<void> PosixStorage::sync(std::string_view folder) {
  if (folder.empty()) {
    CAIRN_TRY(sync_parents());
    if (fsync(directory_->get()) != 0) return failed("syncing the directory", ".");
    return {};
  }
  CAIRN_TRY(check_name(folder));
  const os::Fd fd(open_beneath(directory_->get(), std::string(folder), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return failed("opening the folder", folder);
  CAIRN_TRY(folders_.check_opened(std::string(folder), fd.get()));
  if (fsync(fd.get()) != 0) return failed("syncing the folder", folder);
  return {};
}

// Several threads may sync the parents at the same time; syncing twice is harmless. The flag is set after the syncs: no
// thread skips a sync that is still running, or a sync that failed.
Result<void> PosixStorage::sync_parents() {
  if (parents_synced_) return {};
  for (const os::Fd& parent : parents_of_made_) {
    if (fsync(parent.get()) != 0) return parent_not_synced(parent);
  }
  CAIRN_TRY(sync_parent(*directory_));
  parents_synced_ = true;
  return {};
}

Result<void> PosixStorage::rewrite(std::string_view name, std::string_view bytes) {
  CAIRN_TRY_ASSIGN(const Place place, place_of(name));
  // Without O_NONBLOCK, opening a pipe waits for a process at the far end.
  constexpr int kFlags = O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
  os::Fd fd(openat(place.folder->get(), place.name.c_str(), kFlags));
  if (!fd) return failed("opening", name);
  struct stat status {};
  if (fstat(fd.get(), &status) != 0) return failed("reading the attributes", name);
  if (!S_ISREG(status.st_mode))
    return Error(ErrorCode::kUnsafe, "not a regular file: neither changed nor removed").file(name);
  CAIRN_TRY(fill(fd, name, bytes, Durability::kBuffered));
  if (auto closed = std::move(fd).close(); !closed) return std::move(closed).error().file(name);
  return {};
}

Result<void> PosixStorage::touch(std::string_view name) {
  CAIRN_TRY_ASSIGN(const Place place, place_of(name));
  if (utimensat(place.folder->get(), place.name.c_str(), nullptr, AT_SYMLINK_NOFOLLOW) != 0) {
    return failed("touching", name);
  }
  return {};
}

Result<double> PosixStorage::touched_at(std::string_view name) const {
  Place place{directory_, ""};
  if (!name.empty()) {
    CAIRN_TRY_ASSIGN(place, place_of(name));
  }
  // The forced sync bypasses the attribute cache of the NFS client: a heartbeat of another host is seen at once.
  struct statx status {};
  constexpr int kFlags = AT_SYMLINK_NOFOLLOW | AT_STATX_FORCE_SYNC | AT_EMPTY_PATH;
  if (statx(place.folder->get(), place.name.c_str(), kFlags, STATX_MTIME, &status) != 0) {
    return failed("reading the attributes", name);
  }
  CAIRN_TRY(folders_.check(std::string(name)));
  return static_cast<double>(status.stx_mtime.tv_sec) + 1e-9 * static_cast<double>(status.stx_mtime.tv_nsec);
}

Result<std::unique_ptr<Storage>> PosixStorage::open_parent() const {
  os::Fd fd(openat(directory_->get(), "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return failed("opening the parent directory", "..");
  return std::unique_ptr<Storage>(new PosixStorage(std::move(fd), {}, umask_));
}

Result<std::unique_ptr<Storage>> PosixStorage::open_folder(std::string_view name) const {
  CAIRN_TRY(check_name(name));
  os::Fd fd(open_beneath(directory_->get(), std::string(name), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd && (errno == ELOOP || errno == EXDEV)) {
    return Error(ErrorCode::kUnsafe, "a link in place of a folder").file(name);
  }
  if (!fd) return failed("opening the folder", name);
  return std::unique_ptr<Storage>(new PosixStorage(std::move(fd), {}, umask_));
}

Result<void> PosixStorage::move_folder(std::string_view from, std::string_view to) {
  CAIRN_TRY_ASSIGN(const Place old_place, place_of(from));
  CAIRN_TRY_ASSIGN(const Place new_place, place_of(to));
  if (renameat(old_place.folder->get(), old_place.name.c_str(), new_place.folder->get(), new_place.name.c_str()) == 0) {
    return {};
  }
  // ENOTDIR: a file has the name.
  const bool is_taken = errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR;
  return is_taken ? failed("renaming", to, EEXIST) : failed("renaming", to);
}

Result<void> PosixStorage::exchange_folders(std::string_view one, std::string_view two) {
  CAIRN_TRY_ASSIGN(const Place first, place_of(one));
  CAIRN_TRY_ASSIGN(const Place second, place_of(two));
  if (renameat2(first.folder->get(), first.name.c_str(), second.folder->get(), second.name.c_str(), RENAME_EXCHANGE) ==
      0) {
    return {};
  }
  if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP) return failed("exchanging", two);
  return Error(ErrorCode::kUnsupported, "the file system can't exchange two folders in one step").file(two);
}

Result<bool> PosixStorage::can_exchange_folders() {
  // Another process may make and remove the same folders: EEXIST and ENOENT say nothing about the file system.
  for (const std::string_view name : kExchangeTrialNames) {
    const bool is_made = mkdirat(directory_->get(), name.data(), 0700) == 0;
    if (!is_made && errno != EEXIST) return failed("making the folder", std::string(name));
  }
  const Result<void> exchanged = exchange_folders(kExchangeTrialNames[0], kExchangeTrialNames[1]);
  for (const std::string_view name : kExchangeTrialNames) unlinkat(directory_->get(), name.data(), AT_REMOVEDIR);
  if (exchanged || exchanged.error().error_number() == ENOENT) return true;
  if (exchanged.error().code() == ErrorCode::kUnsupported) return false;
  return exchanged.error();
}

}  // namespace cairn::storage

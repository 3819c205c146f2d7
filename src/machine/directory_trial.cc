#include "machine/directory_trial.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <random>
#include <system_error>
#include <utility>

#include "os/page_buffer.h"

namespace cairn::checkpointer {
namespace {

using storage::OperationKind;

constexpr const char* kTrialNames[] = {"a", "b", "c", "rates"};

Failure last_failure() { return std::generic_category().message(errno) + " (errno " + std::to_string(errno) + ")"; }

Failure failure_of(int result) { return result == 0 ? Failure() : last_failure(); }

}  // namespace

std::filesystem::path DirectoryTrial::folder_in(const std::filesystem::path& directory) {
  std::random_device random;
  return directory / (".cairn-doctor-" + std::to_string(getpid()) + "-" + std::to_string(random()));
}

void DirectoryTrial::remove(const std::filesystem::path& folder) noexcept {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return;
  for (const char* const name : kTrialNames) (void)unlinkat(fd, name, 0);
  close(fd);
  (void)rmdir(folder.c_str());
}

// The file goes first: an NFS client keeps a name for an open file that has been removed.
DirectoryTrial::~DirectoryTrial() {
  if (!is_made_) return;
  const auto call = watched(OperationKind::kNames, "removing");
  file_ = os::Fd();
  folder_ = os::Fd();
  remove(path_);
}

storage::OperationWatch::Call DirectoryTrial::watched(OperationKind kind, const char* action) const {
  return {*operations_, kind, action, path_.filename().string()};
}

Failure DirectoryTrial::make_files() {
  const auto call = watched(OperationKind::kNames, "making");
  if (mkdir(path_.c_str(), 0700) != 0) return last_failure();
  is_made_ = true;
  folder_ = os::Fd(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder_) return last_failure();
  file_ = os::Fd(openat(folder_.get(), ".", O_RDWR | O_TMPFILE | O_CLOEXEC, 0600));
  if (file_) return {};
  // Not every file system has O_TMPFILE: the file loses its name at once.
  file_ = os::Fd(openat(folder_.get(), "rates", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file_) return last_failure();
  return failure_of(unlinkat(folder_.get(), "rates", 0));
}

Result<os::Fd> DirectoryTrial::create(const char* name) const {
  os::Fd file(openat(folder_.get(), name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file || write(file.get(), "cairn", 5) != 5) {
    return Error::from_errno(errno, "making a small file failed").file(path_.filename().string() + "/" + name);
  }
  return file;
}

Failure DirectoryTrial::try_sync(const os::Fd& file) const {
  const auto call = watched(OperationKind::kSync, "syncing");
  if (fsync(file.get()) != 0) return last_failure();
  return failure_of(fsync(folder_.get()));
}

Result<NameTrials> DirectoryTrial::try_names() const {
  NameTrials trials;
  const auto call = watched(OperationKind::kNames, "making and renaming files in");
  CAIRN_TRY_ASSIGN(const os::Fd a, create("a"));
  CAIRN_TRY_ASSIGN(const os::Fd b, create("b"));
  trials.sync = try_sync(a);
  trials.lock = failure_of(flock(a.get(), LOCK_EX | LOCK_NB));
  trials.link = failure_of(linkat(folder_.get(), "a", folder_.get(), "c", 0));
  (void)unlinkat(folder_.get(), "c", 0);
  trials.keeping_rename = failure_of(renameat2(folder_.get(), "a", folder_.get(), "c", RENAME_NOREPLACE));
  const char* const from = trials.keeping_rename ? "a" : "c";
  trials.rename = failure_of(renameat(folder_.get(), from, folder_.get(), "b"));
  return trials;
}

DirectIo DirectoryTrial::try_direct_io() const {
  const auto call = watched(OperationKind::kWrite, "writing past the page cache in");
  DirectIo direct;
  struct statx status {};
  const bool asked = statx(file_.get(), "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0;
  if (asked && (status.stx_mask & STATX_DIOALIGN) != 0) {
    direct = {{}, true, status.stx_dio_mem_align, status.stx_dio_offset_align};
    if (direct.memory_alignment == 0 || direct.offset_alignment == 0) {
      direct.refused = "the kernel states no alignment";
      return direct;
    }
  }
  const int flags = fcntl(file_.get(), F_GETFL);
  if (flags < 0 || fcntl(file_.get(), F_SETFL, flags | O_DIRECT) != 0) {
    direct.refused = last_failure();
    return direct;
  }
  const os::PageBuffer page(os::kPageBytes);
  std::memset(page.data(), 0, page.size());
  const ssize_t written = pwrite(file_.get(), page.data(), page.size(), 0);
  if (written < 0) direct.refused = last_failure();
  if (written >= 0 && static_cast<std::size_t>(written) != page.size()) direct.refused = "a part of a page was written";
  (void)fcntl(file_.get(), F_SETFL, flags);
  return direct;
}

Result<DirectoryTrial::Rates> DirectoryTrial::measure(std::uint64_t bytes, bool direct,
                                                      std::chrono::milliseconds time_max,
                                                      const std::function<bool()>& interrupted) const {
  const int flags = fcntl(file_.get(), F_GETFL);
  if (flags < 0 || (direct && fcntl(file_.get(), F_SETFL, flags | O_DIRECT) != 0)) {
    return Error::from_errno(errno, "setting O_DIRECT failed");
  }
  const storage::RawBuffers buffers;
  storage::RawRequests requests{bytes, time_max, interrupted, operations_.get(), path_.filename().string()};
  Rates rates;
  CAIRN_TRY_ASSIGN(rates.write, storage::write_raw(file_.get(), buffers, requests));
  if (!direct) (void)posix_fadvise(file_.get(), 0, 0, POSIX_FADV_DONTNEED);
  requests.bytes = rates.write.bytes;
  CAIRN_TRY_ASSIGN(rates.read, storage::read_raw(file_.get(), buffers, requests));
  return rates;
}

}  // namespace cairn::checkpointer

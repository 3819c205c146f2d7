#include "storage/testing/hanging_reads.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <condition_variable>
#include <mutex>
#include <string_view>
#include <utility>

namespace cairn::storage {
namespace {

std::mutex mutex;
std::condition_variable released;
std::string hanging_suffix;  // empty: no read hangs

void wait_while_hanging(int file) {
  std::unique_lock lock(mutex);
  if (hanging_suffix.empty()) return;
  std::array<char, 4096> path{};
  const std::string link = "/proc/self/fd/" + std::to_string(file);
  const ssize_t length = ::readlink(link.c_str(), path.data(), path.size());
  if (length < 0 || !std::string_view(path.data(), static_cast<std::size_t>(length)).ends_with(hanging_suffix)) return;
  released.wait(lock, [] { return hanging_suffix.empty(); });
}

}  // namespace

HangingReads::HangingReads(std::string suffix) {
  const std::lock_guard lock(mutex);
  hanging_suffix = std::move(suffix);
}

HangingReads::~HangingReads() {
  const std::lock_guard lock(mutex);
  hanging_suffix.clear();
  released.notify_all();
}

}  // namespace cairn::storage

// These functions take the place of libc's pread and pread64 in the test program. Their own names differ: libc's
// headers may define inline functions of libc's names.
extern "C" {

ssize_t hanging_pread(int file, void* data, std::size_t length, off_t offset) __asm__("pread");
ssize_t hanging_pread(int file, void* data, std::size_t length, off_t offset) {
  cairn::storage::wait_while_hanging(file);
  return ::syscall(SYS_pread64, file, data, length, offset);
}

ssize_t hanging_pread64(int file, void* data, std::size_t length, off_t offset) __asm__("pread64");
ssize_t hanging_pread64(int file, void* data, std::size_t length, off_t offset) {
  return hanging_pread(file, data, length, offset);
}

}  // extern "C"

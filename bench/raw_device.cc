// The rates of the device under a directory: a file written and read in several ways, each with four requests in
// flight (storage/raw_rates.h).
//
//   bench_raw_device DIR BYTES                 prints bytes per second as JSON
//   bench_raw_device DIR BYTES write_direct    measures only write_direct
//   bench_raw_device DIR BYTES floor           prints write_direct, and the CPU seconds that no save avoids: write_cpu
//                                              of that write, and checksum_cpu of as many bytes
//
// Writes end with fsync of file and directory; reads start from a cold cache.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <system_error>

#include "core/checksum.h"
#include "storage/raw_rates.h"

namespace {

using cairn::storage::RawBuffers;
using cairn::storage::RawRequests;

void require(bool good, const char* what) {
  if (!good) throw std::system_error(errno, std::generic_category(), what);
}

class File {
 public:
  File(const std::string& path, int flags) : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {
    require(fd_ >= 0, path.c_str());
  }
  ~File() { ::close(fd_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }
  void sync() const { require(::fsync(fd_) == 0, "fsync"); }

 private:
  int fd_;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The time includes the creation of the file and the sync of the directory.
double write_rate(const std::string& directory, std::uint64_t bytes, const RawBuffers& buffers, int flags) {
  const std::string path = directory + "/raw";
  ::unlink(path.c_str());
  const auto start = std::chrono::steady_clock::now();
  const File file(path, O_CREAT | O_EXCL | O_WRONLY | flags);
  const auto written = cairn::storage::write_raw(file.fd(), buffers, RawRequests{.bytes = bytes, .name = "raw"});
  if (!written) throw written.error();
  File(directory, O_RDONLY | O_DIRECTORY).sync();
  return static_cast<double>(bytes) / seconds_since(start);
}

double read_rate(const std::string& directory, std::uint64_t bytes, const RawBuffers& buffers, int flags) {
  const std::string path = directory + "/raw";
  {
    const File file(path, O_RDONLY);
    require(::posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED) == 0, "posix_fadvise");
  }
  const File file(path, O_RDONLY | flags);
  const auto read = cairn::storage::read_raw(file.fd(), buffers, RawRequests{.bytes = bytes, .name = "raw"});
  if (!read) throw read.error();
  return read->rate();
}

double cpu_seconds() {
  rusage usage{};
  require(::getrusage(RUSAGE_SELF, &usage) == 0, "getrusage");
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// The CPU seconds of the checksums of `bytes`, a block at a time. The bytes come from the processor's cache where it
// holds the buffers.
double checksum_cpu(std::uint64_t bytes, const RawBuffers& buffers) {
  constexpr std::uint64_t kRequest = cairn::storage::kRawRequestBytes;
  const double start = cpu_seconds();
  volatile std::uint32_t last = 0;
  for (std::uint64_t offset = 0; offset < bytes; offset += cairn::kChecksumBlockBytes) {
    const std::byte* const buffer = buffers[offset / kRequest % cairn::storage::kRawRequestsInFlight];
    last = cairn::crc32({buffer + offset % kRequest, cairn::kChecksumBlockBytes});
  }
  static_cast<void>(last);
  return cpu_seconds() - start;
}

}  // namespace

int main(int count, char** words) {
  const bool floor = count == 4 && words[3] == std::string("floor");
  const bool only_write = floor || (count == 4 && words[3] == std::string("write_direct"));
  if (count != 3 && !only_write) return std::fprintf(stderr, "usage: %s DIR BYTES [write_direct|floor]\n", words[0]), 2;
  try {
    const std::string directory = words[1];
    constexpr std::uint64_t kRequest = cairn::storage::kRawRequestBytes;
    const std::uint64_t bytes = std::strtoull(words[2], nullptr, 10) / kRequest * kRequest;
    const RawBuffers buffers;
    const double cpu_before = cpu_seconds();
    std::printf("{\"write_direct\": %.0f", write_rate(directory, bytes, buffers, O_DIRECT));
    if (floor) {
      std::printf(", \"write_cpu\": %.6f", cpu_seconds() - cpu_before);
      std::printf(", \"checksum_cpu\": %.6f", checksum_cpu(bytes, buffers));
    }
    if (!only_write) {
      std::printf(", \"write_buffered\": %.0f", write_rate(directory, bytes, buffers, 0));
      std::printf(", \"read_buffered\": %.0f", read_rate(directory, bytes, buffers, 0));
      std::printf(", \"read_direct\": %.0f", read_rate(directory, bytes, buffers, O_DIRECT));
    }
    std::printf("}\n");
    ::unlink((directory + "/raw").c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}

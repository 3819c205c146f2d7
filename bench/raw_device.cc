// The rates of the device under a directory: a file written and read in several ways, each with four requests in
// flight.
//
//   bench_raw_device DIR BYTES                 prints bytes per second as JSON
//   bench_raw_device DIR BYTES write_direct    measures only write_direct
//
// Writes end with fsync of file and directory; reads start from a cold cache. Nothing is checksummed or copied. Buffers
// lie in huge pages, which a device transfers in fewer pieces.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t kRequestBytes = 4 * 1024 * 1024;
constexpr int kInFlight = 4;
constexpr std::size_t kAlignment = 2 * 1024 * 1024;

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

// An aligned buffer per thread, filled with noise: no lower layer can compress the buffer.
class Buffers {
 public:
  Buffers() {
    std::mt19937_64 random(1);
    for (auto*& buffer : buffers_) {
      buffer = static_cast<unsigned char*>(std::aligned_alloc(kAlignment, kRequestBytes));
      require(buffer != nullptr, "aligned_alloc");
      ::madvise(buffer, kRequestBytes, MADV_HUGEPAGE);  // a hint: refusal does no harm
      for (std::size_t i = 0; i < kRequestBytes; i += sizeof(std::uint64_t)) {
        const std::uint64_t noise = random();
        std::memcpy(buffer + i, &noise, sizeof noise);
      }
    }
  }
  ~Buffers() {
    for (auto* buffer : buffers_) std::free(buffer);
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  unsigned char* operator[](int thread) const { return buffers_[thread]; }

 private:
  unsigned char* buffers_[kInFlight] = {};
};

// Calls request(thread, offset) for every request of the file, from kInFlight threads in ascending order.
template <typename Request>
void for_each_request(std::uint64_t bytes, Request request) {
  std::atomic<std::uint64_t> next{0};
  std::vector<std::jthread> threads;
  threads.reserve(kInFlight);
  for (int thread = 0; thread < kInFlight; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::uint64_t offset = next.fetch_add(kRequestBytes); offset < bytes;
           offset = next.fetch_add(kRequestBytes)) {
        request(thread, offset);
      }
    });
  }
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double write_rate(const std::string& directory, std::uint64_t bytes, const Buffers& buffers, int flags) {
  const std::string path = directory + "/raw";
  ::unlink(path.c_str());
  const auto start = std::chrono::steady_clock::now();
  const File file(path, O_CREAT | O_EXCL | O_WRONLY | flags);
  require(::fallocate(file.fd(), 0, 0, static_cast<off_t>(bytes)) == 0, "fallocate");
  std::atomic<bool> good{true};
  for_each_request(bytes, [&](int thread, std::uint64_t offset) {
    if (::pwrite(file.fd(), buffers[thread], kRequestBytes, static_cast<off_t>(offset)) != kRequestBytes) good = false;
  });
  require(good, "pwrite");
  file.sync();
  File(directory, O_RDONLY | O_DIRECTORY).sync();
  return static_cast<double>(bytes) / seconds_since(start);
}

double read_rate(const std::string& directory, std::uint64_t bytes, const Buffers& buffers, int flags) {
  const std::string path = directory + "/raw";
  {
    const File file(path, O_RDONLY);
    require(::posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED) == 0, "posix_fadvise");
  }
  const auto start = std::chrono::steady_clock::now();
  const File file(path, O_RDONLY | flags);
  std::atomic<bool> good{true};
  for_each_request(bytes, [&](int thread, std::uint64_t offset) {
    if (::pread(file.fd(), buffers[thread], kRequestBytes, static_cast<off_t>(offset)) != kRequestBytes) good = false;
  });
  require(good, "pread");
  return static_cast<double>(bytes) / seconds_since(start);
}

}  // namespace

int main(int count, char** words) {
  const bool only_write = count == 4 && words[3] == std::string("write_direct");
  if (count != 3 && !only_write) return std::fprintf(stderr, "usage: %s DIR BYTES [write_direct]\n", words[0]), 2;
  try {
    const std::string directory = words[1];
    const std::uint64_t bytes = std::strtoull(words[2], nullptr, 10) / kRequestBytes * kRequestBytes;
    const Buffers buffers;
    std::printf("{\"write_direct\": %.0f", write_rate(directory, bytes, buffers, O_DIRECT));
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

#include "storage/raw_rates.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <optional>
#include <random>
#include <string_view>

#include "os/parallel.h"

namespace cairn::storage {
namespace {

using RawClock = std::chrono::steady_clock;

Error raw_failure(std::string_view action, const std::string& name) {
  if (errno == ENOSPC || errno == EDQUOT) {
    return Error(ErrorCode::kNoSpace, std::string(action) + " failed: no space is left").file(name);
  }
  return Error::from_errno(errno, std::string(action) + " failed").file(name);
}

// A pending call while the object lives, if the requests have a watch.
class RawCall {
 public:
  RawCall(const RawRequests& requests, OperationKind kind, std::string_view action) {
    if (requests.operations != nullptr) call_.emplace(*requests.operations, kind, action, requests.name);
  }

 private:
  std::optional<OperationWatch::Call> call_;
};

// Calls `request(buffer, offset)`, which returns as pread(2) does, for the requests in ascending order, from
// kRawRequestsInFlight threads. All requests below the returned bytes are done.
template <typename Request>
Result<RawTransfer> transfer(const RawBuffers& buffers, const RawRequests& requests, std::string_view action,
                             const Request& request) {
  const auto start = RawClock::now();
  const std::uint64_t bytes = requests.bytes / kRawRequestBytes * kRawRequestBytes;
  std::atomic<std::uint64_t> next{0};
  std::atomic<std::uint64_t> done{0};
  const auto work = [&](std::size_t worker, os::StopFlag& stop) -> Result<void> {
    while (!stop.is_set() && RawClock::now() - start < requests.time_max) {
      const std::uint64_t offset = next.fetch_add(kRawRequestBytes);
      if (offset >= bytes) break;
      const RawCall call(requests, OperationKind::kWrite, action);
      const ssize_t moved = request(buffers[worker], static_cast<off_t>(offset));
      if (moved < 0) return raw_failure(action, requests.name).offset(offset);
      if (static_cast<std::uint64_t>(moved) != kRawRequestBytes) {
        return Error(ErrorCode::kUnavailable, std::string(action) + " failed: a part of a request was done")
            .file(requests.name)
            .offset(offset)
            .expected(std::to_string(kRawRequestBytes) + " bytes")
            .actual(std::to_string(moved) + " bytes");
      }
      done.fetch_add(kRawRequestBytes);
    }
    return {};
  };
  CAIRN_TRY(os::run_parallel(kRawRequestsInFlight, requests.interrupted, work));
  return RawTransfer{done, std::chrono::duration<double>(RawClock::now() - start).count()};
}

}  // namespace

RawBuffers::RawBuffers() {
  for (std::size_t request = 0; request < kRawRequestsInFlight; ++request) buffers_.emplace_back(kRawRequestBytes);
  std::mt19937_64 random(1);
  for (const os::PageBuffer& buffer : buffers_) {
    for (std::size_t i = 0; i < buffer.size(); i += sizeof(std::uint64_t)) {
      const std::uint64_t noise = random();
      std::memcpy(buffer.data() + i, &noise, sizeof noise);
    }
  }
}

Result<RawTransfer> write_raw(int fd, const RawBuffers& buffers, const RawRequests& requests) {
  const auto start = RawClock::now();
  {
    const RawCall call(requests, OperationKind::kNames, "reserving space for");
    // Some file systems can't reserve space: only a lack of space is an error.
    if (::fallocate(fd, 0, 0, static_cast<off_t>(requests.bytes)) != 0 && (errno == ENOSPC || errno == EDQUOT)) {
      return raw_failure("reserving space", requests.name);
    }
  }
  CAIRN_TRY_ASSIGN(RawTransfer written,
                   transfer(buffers, requests, "writing", [fd](const std::byte* buffer, off_t offset) {
                     return ::pwrite(fd, buffer, kRawRequestBytes, offset);
                   }));
  const RawCall call(requests, OperationKind::kSync, "syncing");
  if (::fsync(fd) != 0) return raw_failure("syncing", requests.name);
  written.seconds = std::chrono::duration<double>(RawClock::now() - start).count();
  return written;
}

Result<RawTransfer> read_raw(int fd, const RawBuffers& buffers, const RawRequests& requests) {
  return transfer(buffers, requests, "reading",
                  [fd](std::byte* buffer, off_t offset) { return ::pread(fd, buffer, kRawRequestBytes, offset); });
}

}  // namespace cairn::storage

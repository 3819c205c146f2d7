// Raw rates: the bytes per second that the device under a file takes and gives, with as many requests of 4 MiB in
// flight as a save or a load has by default. Nothing is checksummed or copied.
#pragma once

#include <cairn/result.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "os/page_buffer.h"
#include "storage/operation_watch.h"

namespace cairn::storage {

inline constexpr std::uint64_t kRawRequestBytes = std::uint64_t{4} << 20;
inline constexpr std::size_t kRawRequestsInFlight = 6;

// A buffer for each request in flight, in huge pages, filled with noise: no lower layer can compress the bytes.
class RawBuffers {
 public:
  RawBuffers();
  std::byte* operator[](std::size_t request) const { return buffers_[request].data(); }

 private:
  std::vector<os::PageBuffer> buffers_;
};

struct RawRequests {
  std::uint64_t bytes = 0;  // rounded down to whole requests
  // After this time no request is started: the front of the file is measured.
  std::chrono::milliseconds time_max = std::chrono::hours(1);
  std::function<bool()> interrupted = {};  // called on the calling thread; true: kCancelled
  OperationWatch* operations = nullptr;    // of the requests, if given
  std::string name = {};                   // of the file, for errors and for `operations`
};

struct RawTransfer {
  std::uint64_t bytes = 0;  // from the start of the file
  double seconds = 0;

  double rate() const { return seconds > 0 ? static_cast<double>(bytes) / seconds : 0; }  // bytes per second
};

// Reserves the room in the file, writes from its start, and syncs the file. The caller has set or cleared O_DIRECT.
// kNoSpace, and the errors of the system.
Result<RawTransfer> write_raw(int fd, const RawBuffers& buffers, const RawRequests& requests);
// Reads from the start of the file, which has the bytes.
Result<RawTransfer> read_raw(int fd, const RawBuffers& buffers, const RawRequests& requests);

}  // namespace cairn::storage

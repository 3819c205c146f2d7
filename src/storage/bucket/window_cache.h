// WindowCache: the last windows of objects that small reads have fetched. Small reads of neighbouring bytes, such as
// the headers and trailers of a data file, then cost one request.
//
// Thread-safe. Memory: at most kWindowsMax windows.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace cairn::storage {

class WindowCache {
 public:
  static constexpr std::uint64_t kWindowBytes = 256 << 10;
  static constexpr std::size_t kWindowsMax = 64;
  // Fills the bytes from `offset` on.
  using Fetch = std::function<Result<void>(std::uint64_t offset, std::span<std::byte> target)>;

  // A number for an open file.
  std::uint64_t new_file();
  // Drops the windows of the file.
  void forget(std::uint64_t file);

  // Fills `target` from `offset` on, from the windows of the file. `size`: of the file; the range lies within. Windows
  // are counted from the end of the file: its last bytes are read first.
  Result<void> read(std::uint64_t file, std::uint64_t size, std::uint64_t offset, std::span<std::byte> target,
                    const Fetch& fetch);

 private:
  using Bytes = std::shared_ptr<const std::vector<std::byte>>;  // shared with the reads that copy from the window
  struct Window {
    std::uint64_t file;
    std::uint64_t end;  // in the file
    Bytes bytes;
  };

  Bytes find(std::uint64_t file, std::uint64_t end);
  void keep(std::uint64_t file, std::uint64_t end, Bytes bytes);

  std::mutex mutex_;
  std::list<Window> windows_;  // the last used first
  std::uint64_t files_ = 0;
};

}  // namespace cairn::storage

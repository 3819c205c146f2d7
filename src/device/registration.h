// Registration: host memory that is registered with a driver piece by piece, from the front. Copies to and from
// registered memory are asynchronous and run at the full speed of the bus.
//
// A registration of a piece holds a lock of the driver, and the trainer's launches wait for that lock. The pieces are
// small, and register_all() pauses between two pieces. (Measured: 0.9 ms for a piece; without pauses the
// registering thread held the lock so often that a launch waited 150 ms.)
//
// Thread-safe. The memory must stay mapped until withdraw() or the destructor. In a child made by fork withdraw() does
// nothing. A driver that reports errors leaves the memory registered until the process ends.
#pragma once

#include <cairn/result.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>

#include "device/driver.h"

namespace cairn::device {

class Registration {
 public:
  // A copy must stay within one piece.
  static constexpr std::uint64_t kPieceBytes = std::uint64_t{16} << 20;

  // Registers nothing yet. `ordinal`: a device that the program uses. `present`: as for extend(); all by default.
  Registration(Driver& driver, std::int32_t ordinal, std::span<std::byte> memory)
      : Registration(driver, ordinal, memory, memory.size()) {}
  Registration(Driver& driver, std::int32_t ordinal, std::span<std::byte> memory, std::uint64_t present)
      : driver_(driver), ordinal_(ordinal), memory_(memory) {
    extend(present);
  }
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
  ~Registration() { withdraw(); }

  // The first `present` bytes of the memory have pages now. Only pieces that begin below are registered: the driver
  // allocates absent pages under its lock, and checks no memory limit. Never lowers the number.
  void extend(std::uint64_t present);

  // Registers the next piece. False if no more pieces may be registered, or after withdraw(). After an error, which
  // every later call returns too, the registered pieces stay.
  Result<bool> register_next();
  // Registers the remaining pieces, until `stopped`, if given, returns true. After each piece the calling thread sleeps
  // for `pause_share` times the duration of the piece.
  Result<void> register_all(const std::function<bool()>& stopped, int pause_share);
  // Whether [begin, end) of the memory is registered.
  bool covers(std::uint64_t end) const noexcept { return end <= registered_.load(std::memory_order_acquire); }
  std::span<std::byte> memory() const noexcept { return memory_; }
  // The error of register_next(), if any.
  std::optional<Error> refusal() const;

  // Unregisters all. No copy may be pending.
  void withdraw() noexcept;

 private:
  Driver& driver_;
  const std::int32_t ordinal_;
  const std::span<std::byte> memory_;
  const pid_t process_id_ = getpid();
  std::atomic<std::uint64_t> registered_{0};  // bytes from the front

  mutable std::mutex mutex_;
  std::uint64_t end_ = 0;  // of the last piece that may be registered
  bool is_withdrawn_ = false;
  std::optional<Error> refusal_;
};

// The bytes from `host` to the end of its piece in a registration of memory that begins at `base`.
inline std::uint64_t bytes_to_piece_end(const std::byte* base, const std::byte* host) {
  return Registration::kPieceBytes - static_cast<std::uint64_t>(host - base) % Registration::kPieceBytes;
}

}  // namespace cairn::device

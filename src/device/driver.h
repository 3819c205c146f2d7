// Driver: the functions of an accelerator's driver that Cairn uses: register host memory, copy, record, wait, query.
//
// A second kind of accelerator is a second implementation of this interface, a value of DeviceKind, and a line in
// driver.cc. A process uses devices of one kind: the users of this interface tell devices by their ordinals.
//
// Thread-safe. A call may come from any thread, also while another thread captures a graph: a call changes neither the
// thread's current context nor a capture. Each call names the device by its ordinal; the first call for a device
// retains the device's primary context, and the context stays retained. In a child made by fork every call fails.
//
// Errors: kUnavailable with the driver's name and text of the error, and the device if the call names one. A call may
// report an error of earlier asynchronous work on the device, also of work that Cairn did not queue.
#pragma once

#include <cairn/result.h>
#include <cairn/tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace cairn::device {

enum class StreamHandle : std::uintptr_t {};  // of the driver: CUstream
enum class EventHandle : std::uintptr_t {};   // CUevent

// An allocation on a device.
struct DeviceMemory {
  std::int32_t ordinal = 0;
  std::uintptr_t begin = 0;
  std::uint64_t bytes = 0;

  bool contains(std::uintptr_t address) const noexcept { return address >= begin && address - begin < bytes; }
};

enum class Direction : std::uint8_t { kToHost, kToDevice };

// `rows` rows of `width` bytes; consecutive rows are a pitch apart. The pitches do not matter for a single row. The
// host memory of a copy must not begin in one registration and end in the next: the drivers refuse such copies.
struct Copy {
  std::byte* host = nullptr;
  std::uintptr_t device = 0;  // the address
  std::uint64_t width = 0;
  std::uint64_t rows = 1;
  std::uint64_t host_pitch = 0;
  std::uint64_t device_pitch = 0;
};

class Driver {
 public:
  virtual ~Driver() = default;

  virtual DeviceKind kind() const noexcept = 0;
  // Whether copy() queues many single rows as one piece of work. Otherwise each copy fills a place of the stream, and a
  // full stream blocks the caller.
  virtual bool copies_in_batches() const noexcept = 0;

  // The allocation that holds the address. kInvalidArgument if the driver knows no device memory there.
  virtual Result<DeviceMemory> memory_at(const void* address) = 0;

  // Makes asynchronous copies possible between `memory` and any device; `ordinal` gives the context. Takes a lock of
  // the driver for as long as the call lasts: the caller's program can't start work on its devices meanwhile.
  virtual Result<void> register_host(std::int32_t ordinal, std::span<std::byte> memory) = 0;
  // `begin`: of the registered memory. No copy may be pending there.
  virtual void unregister_host(std::int32_t ordinal, std::byte* begin) noexcept = 0;

  virtual Result<StreamHandle> make_stream(std::int32_t ordinal) = 0;
  virtual void destroy_stream(std::int32_t ordinal, StreamHandle stream) noexcept = 0;
  virtual Result<EventHandle> make_event(std::int32_t ordinal) = 0;
  virtual void destroy_event(std::int32_t ordinal, EventHandle event) noexcept = 0;

  // Queues the copies on a stream of Cairn's. Host memory that is not registered is copied during the call, or later.
  virtual Result<void> copy(std::int32_t ordinal, StreamHandle stream, Direction direction,
                            std::span<const Copy> copies) = 0;
  // The event is done when the work that the stream holds now is done.
  virtual Result<void> record(std::int32_t ordinal, EventHandle event, StreamHandle stream) = 0;
  // Work queued on the stream from now on starts after the event's last record. The event may be of another device.
  virtual Result<void> make_wait(std::int32_t ordinal, StreamHandle stream, EventHandle event) = 0;
  virtual Result<bool> is_done(std::int32_t ordinal, EventHandle event) = 0;
  // Whether work queued on the stream goes into a graph now instead of to the device.
  virtual Result<bool> is_capturing(std::int32_t ordinal, StreamHandle stream) = 0;
};

// "cuda:1", for errors.
inline std::string device_name(const Driver& driver, std::int32_t ordinal) {
  return to_string(Device{driver.kind(), ordinal, 0});
}

// The driver of the devices of a kind. The first call loads the driver's library; the driver lives until the end of the
// program. kUnavailable if the machine has no such driver.
Result<Driver*> driver_of(DeviceKind kind);

}  // namespace cairn::device

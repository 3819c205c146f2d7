// Links: the connections of a stager to its devices: streams of Cairn's own, bounce buffers, and the registration of
// memory beside the trainer.
//
// Thread-safe. Outlives the streams and loans that it hands out.
#pragma once

#include <cairn/result.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "device/bounce_buffers.h"
#include "device/driver.h"
#include "device/registration.h"
#include "device/stream.h"

namespace cairn::device {

// The connection to one device. Immutable but for its streams and buffers, which are used again.
class Link {
 public:
  Link(Driver& driver, std::int32_t ordinal) : driver_(driver), ordinal_(ordinal), buffers_(driver, ordinal) {}

  Driver& driver() const noexcept { return driver_; }
  std::int32_t ordinal() const noexcept { return ordinal_; }
  BounceBuffers& buffers() noexcept { return buffers_; }
  // A text for the user if the driver refused to register a buffer, which makes `slower`, for example "loads onto",
  // slower. nullopt if `is_told` is set; sets `is_told` otherwise.
  std::optional<std::string> untold_buffer_refusal(std::string_view slower, std::atomic<bool>& is_told) const;

  // A stream for copies. To be returned when no copy is pending; a stream behind a hanging kernel is not returned.
  Result<Stream> borrow_stream();
  void return_stream(Stream stream);

 private:
  Driver& driver_;
  const std::int32_t ordinal_;
  BounceBuffers buffers_;
  std::mutex mutex_;
  std::vector<Stream> idle_;
};

class Links {
 public:
  Links() = default;
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;
  // Ends a registration that runs, and leaves the rest unregistered. In a child made by fork: does nothing.
  ~Links();

  // The link to a device. kUnavailable if the driver can't be loaded; kInvalidArgument for a missing device.
  Result<Link*> to(DeviceKind kind, std::int32_t ordinal);

  // Registers the memory on a thread of its own, at low speed (registration.h). Does nothing if no thread can be
  // started.
  void register_beside(std::shared_ptr<Registration> registration);

  // A text for the user if memory could not be registered and copies take a detour. Returned once.
  std::optional<std::string> untold_refusal();

  // Keeps `memory` until the copies that may still write into the memory are done: until `is_free` returns true at a
  // release_parked(), or for ever. `is_free` must not own this object.
  void park(std::shared_ptr<void> memory, std::function<bool()> is_free);
  void release_parked();

 private:
  struct Parked {
    std::shared_ptr<void> memory;
    std::function<bool()> is_free;
  };
  struct ParkedMemory {
    std::vector<Parked> all;
    ParkedMemory* next_kept = nullptr;  // keep_for_ever()
  };
  void note_refusal(const Error& refusal);
  void run_registrations(const std::stop_token& stop);

  const pid_t process_id_ = getpid();
  std::mutex mutex_;
  std::map<std::int32_t, std::unique_ptr<Link>> cuda_;  // by ordinal
  std::vector<std::shared_ptr<Registration>> waiting_;
  bool is_registering_ = false;
  std::optional<std::string> refusal_;
  bool refusal_is_told_ = false;
  std::unique_ptr<ParkedMemory> parked_ = std::make_unique<ParkedMemory>();
  std::jthread registering_;  // last: joined first
};

}  // namespace cairn::device

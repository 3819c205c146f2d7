// Stream and Event: a queue of copies of Cairn's own on one device, and a mark in the order of a stream. Owners of the
// driver's objects.
//
// Thread-safe, except for moves and Event::record(): the objects are handles, and the driver is thread-safe.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <span>
#include <utility>

#include "device/driver.h"

namespace cairn::device {

class Event {
 public:
  static Result<Event> make(Driver& driver, std::int32_t ordinal);
  Event(Event&& other) noexcept
      : driver_(std::exchange(other.driver_, nullptr)), ordinal_(other.ordinal_), handle_(other.handle_) {}
  Event& operator=(Event&& other) noexcept;
  ~Event() { release(); }

  EventHandle handle() const noexcept { return handle_; }
  std::int32_t ordinal() const noexcept { return ordinal_; }
  // `stream`: of the event's device; also a stream of the caller's program.
  Result<void> record(StreamHandle stream) { return driver_->record(ordinal_, handle_, stream); }
  // Whether the work before the last record is done; true before the first record.
  Result<bool> is_done() const { return driver_->is_done(ordinal_, handle_); }

 private:
  Event(Driver& driver, std::int32_t ordinal, EventHandle handle)
      : driver_(&driver), ordinal_(ordinal), handle_(handle) {}
  void release() noexcept;

  Driver* driver_;  // null after a move
  std::int32_t ordinal_;
  EventHandle handle_;
};

class Stream {
 public:
  static Result<Stream> make(Driver& driver, std::int32_t ordinal);
  Stream(Stream&& other) noexcept
      : driver_(std::exchange(other.driver_, nullptr)), ordinal_(other.ordinal_), handle_(other.handle_) {}
  Stream& operator=(Stream&&) = delete;
  // Pending copies go on; the driver frees the stream after their end.
  ~Stream();

  StreamHandle handle() const noexcept { return handle_; }
  std::int32_t ordinal() const noexcept { return ordinal_; }
  Driver& driver() const noexcept { return *driver_; }
  Result<void> copy(Direction direction, std::span<const Copy> copies) {
    return driver_->copy(ordinal_, handle_, direction, copies);
  }
  // Copies queued from now on start after the event.
  Result<void> wait_for(const Event& event) { return driver_->make_wait(ordinal_, handle_, event.handle()); }
  // A new event, recorded after the copies queued so far.
  Result<Event> mark();

 private:
  Stream(Driver& driver, std::int32_t ordinal, StreamHandle handle)
      : driver_(&driver), ordinal_(ordinal), handle_(handle) {}

  Driver* driver_;  // null after a move
  std::int32_t ordinal_;
  StreamHandle handle_;
};

// A new event, recorded on a stream of the caller's program: done when the work that the stream holds now is done.
// kInvalidArgument if the stream is being captured into a graph: nothing is recorded then.
Result<Event> mark_of(const Device& device);

// Work that the callers' streams of the stream's device hold from now on starts after the copies that `stream` holds
// now. For copies that outlive a call: the callers may then free or overwrite the memory in the order of their streams.
// Does nothing on a stream that is being captured, and after an error of the driver.
void hold_back(std::span<const Device> callers, Stream& stream) noexcept;

}  // namespace cairn::device

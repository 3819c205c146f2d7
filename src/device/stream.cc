#include "device/stream.h"

#include "core/attempt.h"

namespace cairn::device {

Result<Event> Event::make(Driver& driver, std::int32_t ordinal) {
  CAIRN_TRY_ASSIGN(const EventHandle handle, driver.make_event(ordinal));
  return Event(driver, ordinal, handle);
}

Event& Event::operator=(Event&& other) noexcept {
  if (this == &other) return *this;
  release();
  driver_ = std::exchange(other.driver_, nullptr);
  ordinal_ = other.ordinal_;
  handle_ = other.handle_;
  return *this;
}

void Event::release() noexcept {
  if (driver_ != nullptr) driver_->destroy_event(ordinal_, handle_);
}

Result<Stream> Stream::make(Driver& driver, std::int32_t ordinal) {
  CAIRN_TRY_ASSIGN(const StreamHandle handle, driver.make_stream(ordinal));
  return Stream(driver, ordinal, handle);
}

Stream::~Stream() {
  if (driver_ != nullptr) driver_->destroy_stream(ordinal_, handle_);
}

Result<Event> Stream::mark() {
  CAIRN_TRY_ASSIGN(Event event, Event::make(*driver_, ordinal_));
  CAIRN_TRY(event.record(handle_));
  return event;
}

Result<Event> mark_of(const Device& device) {
  CAIRN_TRY_ASSIGN(Driver* const driver, driver_of(device.kind));
  const StreamHandle stream{device.stream};
  CAIRN_TRY_ASSIGN(const bool is_capturing, driver->is_capturing(device.ordinal, stream));
  if (is_capturing) {
    return Error(ErrorCode::kInvalidArgument, "the current stream of " + to_string(device) +
                                                  " is being captured into a CUDA graph; save or load before or after "
                                                  "the capture");
  }
  CAIRN_TRY_ASSIGN(Event event, Event::make(*driver, device.ordinal));
  CAIRN_TRY(event.record(stream));
  return event;
}

void hold_back(std::span<const Device> callers, Stream& stream) noexcept {
  (void)attempt([&]() -> Result<void> {
    CAIRN_TRY_ASSIGN(const Event copies, stream.mark());
    Driver& driver = stream.driver();
    for (const Device& caller : callers) {
      if (caller.ordinal != stream.ordinal()) continue;
      const StreamHandle handle{caller.stream};
      CAIRN_TRY_ASSIGN(const bool is_capturing, driver.is_capturing(caller.ordinal, handle));
      if (!is_capturing) CAIRN_TRY(driver.make_wait(caller.ordinal, handle, copies.handle()));
    }
    return {};
  });
}

}  // namespace cairn::device

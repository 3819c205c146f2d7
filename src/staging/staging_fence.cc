#include "staging/staging_fence.h"

namespace cairn::staging {

void StagingFence::open(std::vector<std::shared_ptr<const device::Event>> marks) {
  const std::lock_guard lock(mutex_);
  if (is_open_) return;
  marks_ = std::move(marks);
  is_open_ = true;
  opened_.notify_all();
}

bool StagingFence::wait_open(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return opened_.wait_for(lock, timeout, [&] { return is_open_; });
}

Result<void> StagingFence::make_wait(const Device& trainer) const {
  if (trainer.is_cpu()) return {};
  std::shared_ptr<const device::Event> mark;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& it : marks_) {
      if (it->ordinal() == trainer.ordinal) mark = it;
    }
  }
  if (mark == nullptr) return {};  // no copy is from this device: the driver must not open a context there
  CAIRN_TRY_ASSIGN(device::Driver* const driver, device::driver_of(trainer.kind));
  const device::StreamHandle stream{trainer.stream};
  CAIRN_TRY_ASSIGN(const bool is_capturing, driver->is_capturing(trainer.ordinal, stream));
  if (is_capturing) {
    return Error(
        ErrorCode::kInvalidArgument,
        "the current stream of " + to_string(trainer) +
            " is being captured into a CUDA graph, and can't wait for a save; call the fence before the capture");
  }
  return driver->make_wait(trainer.ordinal, stream, mark->handle());
}

}  // namespace cairn::staging

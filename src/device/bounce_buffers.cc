#include "device/bounce_buffers.h"

#include <utility>

namespace cairn::device {

Result<BounceBuffers::Loan> BounceBuffers::borrow() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<Buffer> buffer = std::move(idle_.back());
      idle_.pop_back();
      return Loan(*this, std::move(buffer));
    }
  }
  CAIRN_TRY_ASSIGN(os::MemoryFile memory, os::MemoryFile::create("cairn-bounce"));
  CAIRN_TRY(memory.resize(kBufferBytes));
  CAIRN_TRY(memory.populate(0, kBufferBytes));
  auto buffer = std::make_unique<Buffer>(std::move(memory), driver_, ordinal_);
  if (Result<bool> registered = buffer->registration.register_next(); !registered) {
    const std::lock_guard lock(mutex_);
    if (!refusal_) refusal_ = std::move(registered).error();
  }
  return Loan(*this, std::move(buffer));
}

std::optional<Error> BounceBuffers::refusal() const {
  const std::lock_guard lock(mutex_);
  return refusal_;
}

void BounceBuffers::put_back(std::unique_ptr<Buffer> buffer) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(buffer));
}

}  // namespace cairn::device

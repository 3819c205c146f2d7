// BounceBuffers: a few small registered buffers for one device, for bytes on the way between the device and host memory
// that is not registered. A buffer is made when a thread asks and none is idle, and used again afterwards.
//
// Where the driver refuses to register a buffer, the buffer stays unregistered: copies are then slower, and the bytes
// are right.
//
// Thread-safe. Outlives its loans.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "device/driver.h"
#include "device/kept_for_ever.h"
#include "device/registration.h"
#include "os/memory_file.h"

namespace cairn::device {

class BounceBuffers {
 public:
  static constexpr std::uint64_t kBufferBytes = std::uint64_t{4} << 20;

  BounceBuffers(Driver& driver, std::int32_t ordinal) : driver_(driver), ordinal_(ordinal) {}
  BounceBuffers(const BounceBuffers&) = delete;
  BounceBuffers& operator=(const BounceBuffers&) = delete;

 private:
  struct Buffer {
    Buffer(os::MemoryFile made, Driver& driver, std::int32_t ordinal)
        : memory(std::move(made)), registration(driver, ordinal, memory.bytes()) {}
    os::MemoryFile memory;
    Registration registration;    // destroyed before the memory
    Buffer* next_kept = nullptr;  // keep_for_ever()
  };

 public:
  // A borrowed buffer. No copy may be pending in the buffer when the loan ends.
  class Loan {
   public:
    Loan(BounceBuffers& lender, std::unique_ptr<Buffer> buffer) : lender_(&lender), buffer_(std::move(buffer)) {}
    Loan(Loan&&) noexcept = default;
    Loan& operator=(Loan&&) = delete;
    ~Loan() {
      if (buffer_) lender_->put_back(std::move(buffer_));
    }
    std::span<std::byte> bytes() const noexcept { return buffer_->memory.bytes(); }
    // Otherwise a call that queues a copy may last until the stream reaches the copy.
    bool is_registered() const noexcept { return buffer_->registration.covers(kBufferBytes); }
    // Leaves the buffer to a copy that did not end: the memory stays mapped and registered until the program ends.
    void abandon() noexcept { keep_for_ever(std::move(buffer_)); }

   private:
    BounceBuffers* lender_;
    std::unique_ptr<Buffer> buffer_;
  };

  // Borrows a buffer of kBufferBytes with undefined contents. kNoSpace.
  Result<Loan> borrow();
  // The driver's refusal to register a buffer, if any.
  std::optional<Error> refusal() const;

 private:
  void put_back(std::unique_ptr<Buffer> buffer);

  Driver& driver_;
  const std::int32_t ordinal_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Buffer>> idle_;
  std::optional<Error> refusal_;
};

}  // namespace cairn::device

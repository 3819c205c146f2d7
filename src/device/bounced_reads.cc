#include "device/bounced_reads.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/stream_copy.h"
#include "device/await_event.h"
#include "device/tensor_copies.h"

namespace cairn::device {
namespace {

using Clock = std::chrono::steady_clock;

// The parts that a buffer holds at a time.
class BufferLoad {
 public:
  BufferLoad(BounceBuffers::Loan loan, Stream& stream) : loan_(std::move(loan)), stream_(stream) {}

  // Takes the beginning of `part` as far as there is room. Returns the number of bytes.
  std::uint64_t take(const BouncedPart& part) {
    const std::uint64_t item = item_bytes(part.tensor->dtype);
    const std::uint64_t room = (loan_.bytes().size() - used_) / item * item;
    const std::uint64_t length = std::min<std::uint64_t>(room, part.target.size());
    if (length == 0) return 0;
    BouncedPart& taken = parts_.emplace_back(part);
    taken.target = part.target.first(length);
    append_copies(*part.tensor, part.begin, loan_.bytes().subspan(used_, length), nullptr, copies_);
    used_ += length;
    return length;
  }

  // Fills the targets of the parts taken, and drops the parts.
  Result<void> carry(const std::function<bool()>& interrupted, std::chrono::milliseconds stall_max) {
    if (parts_.empty()) return {};
    const Clock::time_point end = Clock::now() + stall_max;
    bool is_interrupted = false;
    Result<void> copied = copy([&] {
      is_interrupted = interrupted && interrupted();
      return is_interrupted || Clock::now() >= end;
    });
    if (!copied) {
      loan_.abandon();  // the device may still write into the buffer
      if (is_interrupted) return copied;
      if (copied.error().code() == ErrorCode::kCancelled) copied = stalled(stream_, stall_max);
      return std::move(copied).error().key(parts_.front().key);
    }
    std::uint64_t used = 0;
    for (const BouncedPart& part : parts_) {
      stream_copy(part.target, loan_.bytes().subspan(used, part.target.size()));
      used += part.target.size();
    }
    parts_.clear();
    copies_.clear();
    used_ = 0;
    return {};
  }

 private:
  Result<void> copy(const std::function<bool()>& gives_up) {
    if (!loan_.is_registered()) CAIRN_TRY(await_turn(stream_, gives_up));
    CAIRN_TRY(stream_.copy(Direction::kToHost, copies_));
    CAIRN_TRY_ASSIGN(const Event done, stream_.mark());
    return await(done, gives_up);
  }

  BounceBuffers::Loan loan_;
  Stream& stream_;
  std::vector<BouncedPart> parts_;
  std::vector<Copy> copies_;
  std::uint64_t used_ = 0;
};

}  // namespace

Result<void> read_by_bounce(Link& link, Stream& stream, std::span<const BouncedPart> parts,
                            const std::function<bool()>& interrupted, std::chrono::milliseconds stall_max) {
  if (parts.empty()) return {};
  CAIRN_TRY_ASSIGN(BounceBuffers::Loan loan, link.buffers().borrow());
  BufferLoad load(std::move(loan), stream);
  for (BouncedPart part : parts) {
    while (!part.target.empty()) {
      const std::uint64_t taken = load.take(part);
      part.begin += taken;
      part.target = part.target.subspan(taken);
      if (!part.target.empty()) CAIRN_TRY(load.carry(interrupted, stall_max));
    }
  }
  return load.carry(interrupted, stall_max);
}

}  // namespace cairn::device

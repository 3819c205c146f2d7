#include "load/device_targets.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "device/await_event.h"

namespace cairn::checkpointer {
namespace {

constexpr std::chrono::seconds kSettleTargetsMax{1};
// Far below the longest pitch of any driver.
constexpr std::uint64_t kPitchMax = std::uint64_t{1} << 30;

// Appends a row of `width` bytes; a row at an equal distance extends the last copy.
void append_row(std::vector<device::Copy>& copies, std::byte* host, std::uintptr_t address, std::uint64_t width) {
  if (!copies.empty()) {
    device::Copy& last = copies.back();
    const std::uint64_t distance = address - last.device;  // huge for an address before the last copy's
    const bool follows = last.rows == 1 || distance == last.rows * last.device_pitch;
    if (last.rows == 1 && distance == last.width) {
      last.width += width;
      return;
    }
    if (width == last.width && follows && distance > width && distance / last.rows <= kPitchMax &&
        host == last.host + last.rows * width) {
      last.host_pitch = width;
      last.device_pitch = distance / last.rows;
      ++last.rows;
      return;
    }
  }
  copies.push_back({host, address, width});
}

}  // namespace

// The buffer that a call of place() fills.
class DeviceTargets::Filling {
 public:
  Filling(DeviceTargets& targets, Lane& lane, const data_file::TensorRead& read, const os::StopFlag& stop)
      : targets_(targets), lane_(lane), read_(read), stop_(stop), item_(item_bytes(read.target().dtype)) {}

  // `elements` begins with the run's first element.
  Result<void> add(const Run& run, const std::byte* elements) {
    const Region& region = read_.region();
    const auto file_step = static_cast<std::size_t>(region.file_step()) * item_;
    auto* const memory = static_cast<std::byte*>(read_.target().data);
    const std::int64_t step = region.memory_step();
    for (std::int64_t done = 0; done < run.count;) {
      if (!buffer_) {
        CAIRN_TRY_ASSIGN(device::BounceBuffers::Loan buffer, targets_.buffer_of(lane_, stop_));
        buffer_.emplace(std::move(buffer));
      }
      const auto room = static_cast<std::int64_t>((buffer_->bytes().size() - used_) / item_);
      const std::int64_t count = std::min(run.count - done, room);
      std::byte* const host = buffer_->bytes().data() + used_;
      pack(host, elements + static_cast<std::size_t>(done) * file_step, count, file_step);
      const auto address = [&](std::int64_t i) {
        return reinterpret_cast<std::uintptr_t>(memory) +
               static_cast<std::uintptr_t>((run.memory_offset + (done + i) * step) * static_cast<std::int64_t>(item_));
      };
      if (step == 1) {
        append_row(copies_, host, address(0), static_cast<std::uint64_t>(count) * item_);
      } else {
        for (std::int64_t i = 0; i < count; ++i) {
          append_row(copies_, host + static_cast<std::size_t>(i) * item_, address(i), item_);
        }
      }
      used_ += static_cast<std::size_t>(count) * item_;
      done += count;
      if (buffer_->bytes().size() - used_ < item_) CAIRN_TRY(submit());
    }
    return {};
  }

  Result<void> submit() {
    if (!buffer_) return {};
    device::BounceBuffers::Loan buffer = std::move(*buffer_);
    buffer_.reset();
    if (!buffer.is_registered()) CAIRN_TRY(await_turn());
    const std::lock_guard lock(lane_.mutex);
    Result<void> queued = lane_.stream.copy(device::Direction::kToDevice, copies_);
    copies_.clear();
    used_ = 0;
    Result<device::Event> done = lane_.stream.mark();
    if (!queued || !done) {
      buffer.abandon();  // some of the copies may be pending
      lane_.has_lost_copies = true;
      return queued ? std::move(done).error() : std::move(queued).error();
    }
    lane_.pending.push_back({std::move(buffer), std::move(*done), std::string(read_.key())});
    return {};
  }

 private:
  void pack(std::byte* host, const std::byte* elements, std::int64_t count, std::size_t file_step) const {
    if (file_step == item_) {
      std::memcpy(host, elements, static_cast<std::size_t>(count) * item_);
      return;
    }
    for (std::int64_t i = 0; i < count; ++i) {
      std::memcpy(host + static_cast<std::size_t>(i) * item_, elements + static_cast<std::size_t>(i) * file_step,
                  item_);
    }
  }

  Result<void> await_turn() {
    const auto end = std::chrono::steady_clock::now() + kStall;
    bool is_late = false;
    Result<void> done = device::await_turn(lane_.stream, [&] {
      is_late = std::chrono::steady_clock::now() >= end;
      return is_late || stop_.is_set();
    });
    return is_late ? stalled(lane_) : done;
  }

  DeviceTargets& targets_;
  Lane& lane_;
  const data_file::TensorRead& read_;
  const os::StopFlag& stop_;
  const std::size_t item_;
  std::optional<device::BounceBuffers::Loan> buffer_;
  std::size_t used_ = 0;
  std::vector<device::Copy> copies_;
};

DeviceTargets::~DeviceTargets() {
  const auto end = std::chrono::steady_clock::now() + kSettleTargetsMax;
  const auto is_late = [end] { return std::chrono::steady_clock::now() >= end; };
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    bool is_idle = !lane->has_lost_copies;
    for (Pending& pending : lane->pending) {
      if (device::await(pending.done, is_late)) continue;
      pending.buffer.abandon();  // also after an error of the driver, which does not say whether the copy has ended
      is_idle = false;
    }
    lane->pending.clear();
    if (is_idle) {
      lane->link.return_stream(std::move(lane->stream));
    } else {
      device::hold_back(marked_, lane->stream);
    }
  }
}

Result<void> DeviceTargets::mark(std::span<const Entry> entries) {
  for (const Entry& entry : entries) {
    const auto* const tensor = std::get_if<TensorEntry>(&entry.content);
    if (tensor == nullptr || tensor->local.device.is_cpu()) continue;
    if (Result<void> added = add(*tensor); !added) return std::move(added).error().key(entry.fqn);
  }
  return {};
}

Result<void> DeviceTargets::add(const TensorEntry& entry) {
  const Device& device = entry.local.device;
  const Extents& sizes = entry.local.sizes;
  if (std::find(sizes.begin(), sizes.end(), 0) == sizes.end()) {
    CAIRN_TRY_ASSIGN(device::Driver* const driver, device::driver_of(device.kind));
    CAIRN_TRY_ASSIGN(const device::DeviceMemory memory, driver->memory_at(entry.local.data));
    if (memory.ordinal != device.ordinal) {
      return Error(ErrorCode::kInvalidArgument, "the tensor is on another device than its view says")
          .expected(to_string(device))
          .actual(to_string(Device{device.kind, memory.ordinal, 0}));
    }
  }
  if (std::find(marked_.begin(), marked_.end(), device) != marked_.end()) return {};
  marked_.push_back(device);
  CAIRN_TRY_ASSIGN(const device::Event before, device::mark_of(device));
  if (lane_of(device.ordinal) == nullptr) {
    CAIRN_TRY_ASSIGN(device::Link* const link, links_.to(device.kind, device.ordinal));
    CAIRN_TRY_ASSIGN(device::Stream stream, link->borrow_stream());
    lanes_.push_back(std::make_unique<Lane>(*link, std::move(stream)));
  }
  return lane_of(device.ordinal)->stream.wait_for(before);
}

DeviceTargets::Lane* DeviceTargets::lane_of(std::int32_t ordinal) noexcept {
  const auto found = std::find_if(lanes_.begin(), lanes_.end(),
                                  [&](const std::unique_ptr<Lane>& it) { return it->link.ordinal() == ordinal; });
  return found == lanes_.end() ? nullptr : found->get();
}

Result<void> DeviceTargets::place(const data_file::TensorRead& read, std::int64_t begin,
                                  std::span<const std::byte> elements, const os::StopFlag& stop) {
  const std::size_t item = item_bytes(read.target().dtype);
  Filling filling(*this, *lane_of(read.target().device.ordinal), read, stop);
  Result<void> placed;
  const std::int64_t end = begin + static_cast<std::int64_t>(elements.size() / item);
  read.region().for_runs(begin, end, [&](const Run& run) {
    if (placed) placed = filling.add(run, elements.data() + static_cast<std::size_t>(run.file_offset - begin) * item);
  });
  if (placed) placed = filling.submit();
  if (!placed && !placed.error().key()) return std::move(placed).error().key(read.key());
  return placed;
}

Result<device::BounceBuffers::Loan> DeviceTargets::buffer_of(Lane& lane, const os::StopFlag& stop) {
  std::optional<Pending> oldest;
  {
    const std::lock_guard lock(lane.mutex);
    if (lane.pending.size() >= kInFlightMax) {
      oldest.emplace(std::move(lane.pending.front()));
      lane.pending.pop_front();
    }
  }
  if (!oldest) return lane.link.buffers().borrow();
  CAIRN_TRY(await(lane, *oldest, [&stop] { return stop.is_set(); }));
  return std::move(oldest->buffer);
}

Error DeviceTargets::stalled(const Lane& lane) {
  const std::string device = device::device_name(lane.link.driver(), lane.link.ordinal());
  return Error(ErrorCode::kUnavailable,
               "a copy to " + device + " did not end within 5 minutes; work that the device holds may never end");
}

Result<void> DeviceTargets::await(const Lane& lane, device::Event& done, const std::function<bool()>& interrupted) {
  const auto end = std::chrono::steady_clock::now() + kStall;
  bool is_late = false;
  Result<void> outcome = device::await(done, [&] {
    is_late = std::chrono::steady_clock::now() >= end;
    return is_late || (interrupted && interrupted());
  });
  return !outcome && is_late ? Result<void>(stalled(lane)) : outcome;
}

Result<void> DeviceTargets::await(Lane& lane, Pending& pending, const std::function<bool()>& interrupted) {
  Result<void> done = await(lane, pending.done, interrupted);
  if (done) return {};
  pending.buffer.abandon();  // also after an error of the driver, which does not say whether the copy has ended
  lane.has_lost_copies = true;
  return std::move(done).error().key(pending.key);
}

// The copies of a lane end in the order in which they were queued.
Result<void> DeviceTargets::settle(const std::function<bool()>& interrupted) {
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    std::optional<device::Event> done;
    {
      const std::lock_guard lock(lane->mutex);
      CAIRN_TRY_ASSIGN(done, lane->stream.mark());
    }
    CAIRN_TRY(await(*lane, *done, interrupted));
  }
  return {};
}

Result<void> DeviceTargets::finish(const std::function<bool()>& interrupted) {
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    const std::lock_guard lock(lane->mutex);
    while (!lane->pending.empty()) {
      Pending oldest = std::move(lane->pending.front());
      lane->pending.pop_front();
      CAIRN_TRY(await(*lane, oldest, interrupted));
    }
  }
  return {};
}

std::optional<std::string> DeviceTargets::untold_refusal() {
  static std::atomic<bool> is_told{false};
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    if (std::optional<std::string> told = lane->link.untold_buffer_refusal("loads onto", is_told)) return told;
  }
  return std::nullopt;
}

}  // namespace cairn::checkpointer

#include "staging/device_sources.h"

#include <algorithm>
#include <utility>

#include "device/await_event.h"
#include "staging/portions.h"

namespace cairn::staging {
namespace {

constexpr std::chrono::milliseconds kSettleMax{1000};

// Checks that tensors are on their devices. Most tensors lie in few allocations, so most questions are answered by the
// allocations found before.
class AllocationCheck {
 public:
  explicit AllocationCheck(device::Driver& driver) : driver_(driver) {}

  Result<void> expect_on(const Device& device, const TensorView& tensor) {
    if (std::find(tensor.sizes.begin(), tensor.sizes.end(), 0) != tensor.sizes.end()) return {};  // no elements
    const auto address = reinterpret_cast<std::uintptr_t>(tensor.data);
    const auto known = std::find_if(found_.rbegin(), found_.rend(),
                                    [&](const device::DeviceMemory& it) { return it.contains(address); });
    if (known != found_.rend()) return expect_same(*known, device);
    CAIRN_TRY_ASSIGN(const device::DeviceMemory memory, driver_.memory_at(tensor.data));
    found_.push_back(memory);
    return expect_same(memory, device);
  }

 private:
  static Result<void> expect_same(const device::DeviceMemory& memory, const Device& device) {
    if (memory.ordinal == device.ordinal) return {};
    return Error(ErrorCode::kInvalidArgument, "the tensor is on another device than its view says")
        .expected(to_string(device))
        .actual(to_string(Device{device.kind, memory.ordinal, 0}));
  }

  device::Driver& driver_;
  std::vector<device::DeviceMemory> found_;
};

}  // namespace

Result<void> DeviceSources::add_streams(std::span<const CopyItem> items) {
  std::optional<AllocationCheck> check;
  for (const CopyItem& item : items) {
    const Device device = device_of(item);
    if (device.is_cpu()) continue;
    const auto add = [&]() -> Result<void> {
      if (!check) {
        CAIRN_TRY_ASSIGN(device::Driver* const driver, device::driver_of(device.kind));
        check.emplace(*driver);
      }
      CAIRN_TRY(check->expect_on(device, *item.tensor));
      if (std::find(marked_.rbegin(), marked_.rend(), device) != marked_.rend()) return {};
      marked_.push_back(device);
      CAIRN_TRY_ASSIGN(const device::Event before, device::mark_of(device));  // (1)
      const bool is_known = std::any_of(lanes_.begin(), lanes_.end(),
                                        [&](const Lane& lane) { return lane.link->ordinal() == device.ordinal; });
      if (!is_known) {
        CAIRN_TRY_ASSIGN(device::Link* const link, links_->to(device.kind, device.ordinal));
        CAIRN_TRY_ASSIGN(device::Stream stream, link->borrow_stream());
        lanes_.push_back({link, std::move(stream)});
      }
      return lane_of(device.ordinal).stream.wait_for(before);  // (2)
    };
    if (Result<void> added = add(); !added) return std::move(added).error().key(item.key);
  }
  return {};
}

Result<std::unique_ptr<DeviceSources>> DeviceSources::mark(std::span<const CopyItem> items,
                                                           std::shared_ptr<device::Links> links,
                                                           std::optional<std::uint64_t> sample_seed) {
  const bool has_any =
      std::any_of(items.begin(), items.end(), [](const CopyItem& it) { return !device_of(it).is_cpu(); });
  if (!has_any) return std::unique_ptr<DeviceSources>();
  std::unique_ptr<DeviceSources> sources(new DeviceSources(items.size(), std::move(links)));
  CAIRN_TRY(sources->add_streams(items));
  if (!sample_seed) return sources;
  for (Lane& lane : sources->lanes_) {
    CAIRN_TRY(sources->samples_.take(items, *lane.link, lane.stream, *sample_seed));  // (3)
  }
  return sources;
}

DeviceSources::~DeviceSources() {
  if (!settle(kSettleMax)) {
    hold_back_caller();
    samples_.abandon();
    return;
  }
  for (Lane& lane : lanes_) lane.link->return_stream(std::move(lane.stream));
}

DeviceSources::Marks DeviceSources::marks() noexcept {
  Marks marks;
  for (Lane& lane : lanes_) {
    Result<device::Event> mark = lane.stream.mark();
    if (mark) marks.push_back(std::make_shared<const device::Event>(std::move(*mark)));
  }
  return marks;
}

// An error of the driver means that the device's context is lost, and its copies with it.
bool DeviceSources::settle(std::chrono::milliseconds timeout) noexcept {
  const auto end = std::chrono::steady_clock::now() + timeout;
  for (Lane& lane : lanes_) {
    const Result<device::Event> mark = lane.stream.mark();
    if (!mark) continue;
    const Result<void> done = device::await(*mark, [&] { return std::chrono::steady_clock::now() >= end; });
    if (!done && done.error().code() == ErrorCode::kCancelled) return false;
  }
  return true;
}

void DeviceSources::hold_back_caller() noexcept {
  for (Lane& lane : lanes_) device::hold_back(marked_, lane.stream);
}

void DeviceSources::park(std::shared_ptr<DeviceSources> sources, std::shared_ptr<void> memory) {
  const std::shared_ptr<device::Links> links = std::move(sources->links_);
  // Marks made now: a mark made for a question would not be done yet.
  links->park(std::move(memory), [sources, marks = sources->marks()] {
    return std::all_of(marks.begin(), marks.end(), [](const auto& mark) {
      const Result<bool> is_done = mark->is_done();
      return !is_done || *is_done;  // after an error of the driver the copies are lost
    });
  });
}

void DeviceSources::register_beside(Arena& arena) {
  if (lanes_.empty() || arena.is_registered(arena.known_present())) return;
  const device::Link& link = *lanes_.front().link;
  links_->register_beside(arena.begin_registration(link.driver(), link.ordinal()));
}

DeviceSources::Lane& DeviceSources::lane_of(std::int32_t ordinal) {
  return *std::find_if(lanes_.begin(), lanes_.end(), [&](const Lane& lane) { return lane.link->ordinal() == ordinal; });
}

}  // namespace cairn::staging

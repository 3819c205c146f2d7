#include "staging/device_copies.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "device/await_event.h"
#include "device/bounced_reads.h"
#include "device/tensor_copies.h"

namespace cairn::staging {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kQueuedCopiesMax = 1000;
constexpr std::chrono::microseconds kLookInterval{20};

std::uint64_t length_of(const CopyItem& item, const Portion& portion) {
  return portion.is_one_item() ? portion.end - portion.begin : form_of(item).bytes;
}

}  // namespace

std::span<std::byte> DeviceCopies::target_of(std::size_t item, std::uint64_t begin, std::uint64_t length) const {
  return arena_.bytes().subspan(items_[item].arena_offset + begin, length);
}

bool DeviceCopies::is_direct(const Portion& portion) const {
  const CopyItem& last = items_[portion.last - 1];
  const std::uint64_t begin = portion.is_one_item() ? portion.begin : 0;
  return arena_.is_registered(last.arena_offset + begin + length_of(last, portion));
}

// Queues a portion. Returns the number of its copies.
Result<std::size_t> DeviceCopies::queue(const Portion& portion, std::size_t position) {
  const CopyItem& first = items_[portion.first];
  DeviceSources::Lane& lane = sources_.lane_of(device_of(first).ordinal);
  const std::byte* const pieces = arena_.registration()->memory().data();
  const std::uint64_t begin = portion.is_one_item() ? portion.begin : 0;
  std::vector<device::Copy> copies;
  for (std::size_t i = portion.first; i < portion.last; ++i) {
    append_copies(*items_[i].tensor, begin, target_of(i, begin, length_of(items_[i], portion)), pieces, copies);
  }
  const auto add = [&]() -> Result<void> {
    CAIRN_TRY(lane.stream.copy(device::Direction::kToHost, copies));
    CAIRN_TRY_ASSIGN(device::Event done, lane.stream.mark());
    queued_[lane.link->ordinal()].push_back({position, copies.size(), std::move(done)});
    return {};
  };
  if (Result<void> added = add(); !added) return std::move(added).error().key(first.key);
  return copies.size();
}

void DeviceCopies::compare(const Portion& portion) {
  const std::uint64_t begin = portion.is_one_item() ? portion.begin : 0;
  for (std::size_t i = portion.first; i < portion.last; ++i) {
    const std::span<const std::byte> copied = target_of(i, begin, length_of(items_[i], portion));
    if (!sources_.samples().agree(i, begin, copied)) torn_.add(i);
  }
}

// Returns whether a portion was done.
Result<bool> DeviceCopies::take_done(std::span<const Portion> portions, const std::function<void(std::size_t)>& done) {
  bool any = false;
  for (auto& [ordinal, queue] : queued_) {
    while (!queue.empty()) {
      const Queued& next = queue.front();
      const Portion& portion = portions[next.portion];
      Result<bool> is_done = next.done.is_done();
      if (!is_done) return std::move(is_done).error().key(items_[portion.first].key);
      if (!*is_done) break;
      compare(portion);
      done(next.portion);
      queued_copies_ -= next.copy_count;
      queue.pop_front();
      any = true;
    }
  }
  return any;
}

Result<void> DeviceCopies::copy_directly(std::span<const Portion> portions, const os::StopFlag& stop,
                                         const std::function<void(std::size_t)>& done,
                                         const std::function<void()>& queued) {
  std::size_t next = 0;
  std::size_t done_count = 0;
  const auto count = [&](std::size_t position) {
    ++done_count;
    done(position);
  };
  Clock::time_point last_progress = Clock::now();
  while (done_count < portions.size()) {
    if (stop.is_set()) return Error(ErrorCode::kCancelled, "interrupted by the caller");
    const std::size_t before = next;
    while (next < portions.size() && queued_copies_ < kQueuedCopiesMax) {
      CAIRN_TRY_ASSIGN(const std::size_t copies, queue(portions[next], next));
      queued_copies_ += copies;
      if (++next == portions.size()) queued();
    }
    CAIRN_TRY_ASSIGN(const bool any_done, take_done(portions, count));
    if (any_done || next != before) {
      last_progress = Clock::now();
    } else if (Clock::now() - last_progress > limits_.stall_max) {
      const CopyItem& first = items_[portions[done_count].first];
      return device::stalled(sources_.lane_of(device_of(first).ordinal).stream, limits_.stall_max).key(first.key);
    } else {
      std::this_thread::sleep_for(kLookInterval);
    }
  }
  return {};
}

Result<void> DeviceCopies::copy_by_bounce(const Portion& portion, const os::StopFlag& stop) {
  std::vector<device::BouncedPart> parts;
  const std::uint64_t begin = portion.is_one_item() ? portion.begin : 0;
  for (std::size_t i = portion.first; i < portion.last; ++i) {
    const std::uint64_t length = length_of(items_[i], portion);
    if (length != 0) parts.push_back({items_[i].tensor, begin, target_of(i, begin, length), items_[i].key});
  }
  DeviceSources::Lane& lane = sources_.lane_of(device_of(items_[portion.first]).ordinal);
  CAIRN_TRY(device::read_by_bounce(
      *lane.link, lane.stream, parts, [&stop] { return stop.is_set(); }, limits_.stall_max));
  compare(portion);
  return {};
}

}  // namespace cairn::staging

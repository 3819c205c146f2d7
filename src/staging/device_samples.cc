#include "staging/device_samples.h"

#include <algorithm>
#include <cstring>

#include "core/mixed_number.h"
#include "device/tensor_copies.h"
#include "staging/portions.h"

namespace cairn::staging {
namespace {

constexpr std::uint64_t kStratum = std::uint64_t{1} << 20;
constexpr std::uint64_t kLength = 32;
// The most pieces of work on a stream: a full stream of about a thousand blocks the caller. Other tensors have a
// single sample in a batch of copies, or none if the driver has no batches.
constexpr std::size_t kQueuedMax = 256;

}  // namespace

Result<void> DeviceSamples::take(std::span<const CopyItem> items, device::Link& link, device::Stream& stream,
                                 std::uint64_t seed) {
  CAIRN_TRY_ASSIGN(device::BounceBuffers::Loan loan, link.buffers().borrow());
  // The call that queues a copy into memory that is not registered may wait for the caller's earlier work.
  if (!loan.is_registered()) return {};
  std::span<std::byte> room = loan.bytes();
  memory_.push_back(std::move(loan));
  const bool has_batches = link.driver().copies_in_batches();
  std::size_t queued = 0;
  std::vector<device::Copy> copies;       // of several rows: a piece of work on the stream each
  std::vector<device::Copy> single_rows;  // one piece of work for all, if the driver has batches
  for (std::size_t i = 0; i < items.size(); ++i) {
    const Device device = device_of(items[i]);
    if (device.is_cpu() || device.ordinal != link.ordinal()) continue;
    const CopyForm form = form_of(items[i]);
    if (form.bytes == 0 || (!form.is_one_stretch && queued >= kQueuedMax)) continue;
    const std::uint64_t places = std::max<std::uint64_t>(std::min(form.bytes, kStratum) / kLength, 1);
    Place place;
    place.offset = (mixed_number(seed + i) >> 32) * places / (std::uint64_t{1} << 32) * kLength;
    place.length = static_cast<std::uint32_t>(std::min(kLength, form.bytes - place.offset));
    const bool has_rows = form.is_one_stretch && form.bytes / kStratum > 1 && queued < kQueuedMax;
    place.rows = has_rows ? static_cast<std::uint32_t>(form.bytes / kStratum) : 1;
    const std::uint64_t bytes = std::uint64_t{place.rows} * place.length;
    if (bytes > room.size()) break;
    if (has_rows || !has_batches) ++queued;
    if (!has_batches && queued > kQueuedMax) break;
    place.taken = room.data();
    if (place.rows == 1) {
      std::vector<device::Copy> added;
      append_copies(*items[i].tensor, place.offset, room.first(bytes), nullptr, added);
      for (const device::Copy& copy : added) {
        (copy.rows == 1 ? single_rows : copies).push_back(copy);
        if (copy.rows > 1) ++queued;
      }
    } else {
      const auto address = reinterpret_cast<std::uintptr_t>(items[i].tensor->data) + place.offset;
      copies.push_back({room.data(), address, place.length, place.rows, place.length, kStratum});
    }
    room = room.subspan(bytes);
    places_[i] = place;
  }
  CAIRN_TRY(stream.copy(device::Direction::kToHost, copies));
  return stream.copy(device::Direction::kToHost, single_rows);
}

bool DeviceSamples::agree(std::size_t index, std::uint64_t begin, std::span<const std::byte> copied) const {
  const Place& place = places_[index];
  if (place.rows == 0) return true;
  std::uint64_t row = begin > place.offset ? (begin - place.offset + kStratum - 1) / kStratum : 0;
  for (; row < place.rows; ++row) {
    const std::uint64_t at = place.offset + row * kStratum - begin;
    if (at + place.length > copied.size()) break;
    if (std::memcmp(copied.data() + at, place.taken + row * place.length, place.length) != 0) return false;
  }
  return true;
}

void DeviceSamples::abandon() noexcept {
  for (device::BounceBuffers::Loan& loan : memory_) loan.abandon();
  memory_.clear();
}

}  // namespace cairn::staging

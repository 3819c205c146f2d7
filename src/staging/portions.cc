#include "staging/portions.h"

#include <algorithm>

namespace cairn::staging {
namespace {

// The work per step. For the threads of the CPU: large enough to outweigh the cost of a step, small enough for all
// threads to end together. For a device: a step ends with an event, and its bytes can then be written; 16 MiB take
// 0.3 ms, and larger copies are no faster.
struct PortionSize {
  std::uint64_t bytes;
  std::size_t items;
};
constexpr PortionSize kCpuPortion{std::uint64_t{4} << 20, 1024};
constexpr PortionSize kDevicePortion{std::uint64_t{16} << 20, 256};
// Small items of a device are gathered up to the size of a bounce buffer.
constexpr std::uint64_t kGatheredBytesMax = std::uint64_t{4} << 20;

bool is_same_memory(const Device& a, const Device& b) { return a.kind == b.kind && a.ordinal == b.ordinal; }

}  // namespace

Device device_of(const CopyItem& item) { return item.tensor == nullptr ? Device{} : item.tensor->device; }

std::vector<Portion> portions_of(std::span<const CopyItem> items) {
  std::vector<Portion> portions;
  Portion small;  // the portion being gathered
  Device memory;  // of the portion being gathered
  const auto close = [&](std::size_t next) {
    if (small.first < small.last) portions.push_back(small);
    small = {next, next, 0, 0};
  };
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::uint64_t bytes = form_of(items[i]).bytes;
    const Device device = device_of(items[i]);
    const PortionSize size = device.is_cpu() ? kCpuPortion : kDevicePortion;
    if (bytes >= kGatheredBytesMax) {
      close(i + 1);
      for (std::uint64_t begin = 0; begin < bytes; begin += size.bytes) {
        portions.push_back({i, i + 1, begin, std::min(begin + size.bytes, bytes)});
      }
      continue;
    }
    const bool is_full = small.end + bytes > kGatheredBytesMax || small.last - small.first == size.items;
    if (is_full || !is_same_memory(memory, device)) close(i);
    memory = device;
    small.last = i + 1;
    small.end += bytes;
  }
  close(items.size());
  return portions;
}

std::uint64_t begin_of(std::span<const CopyItem> items, const Portion& portion) {
  return items[portion.first].arena_offset + (portion.is_one_item() ? portion.begin : 0);
}

}  // namespace cairn::staging

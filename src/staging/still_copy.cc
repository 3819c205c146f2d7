#include "staging/still_copy.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "core/region.h"
#include "core/stream_copy.h"
#include "os/ordered_progress.h"
#include "os/parallel.h"

namespace cairn::staging {
namespace {

// What a thread takes at a time: large enough to be worth the taking, small enough that all end together.
constexpr std::uint64_t kPortionBytes = 4 * 1024 * 1024;
constexpr std::size_t kPortionItems = 1024;

std::uint64_t bytes_of(const CopyItem& item) {
  if (item.tensor == nullptr) return item.bytes.size();
  std::uint64_t bytes = item_bytes(item.tensor->dtype);
  for (const std::int64_t size : item.tensor->sizes) bytes *= static_cast<std::uint64_t>(size);
  return bytes;
}

// Some items, whole; or a part of one.
struct Portion {
  std::size_t first = 0;
  std::size_t last = 0;     // one past
  std::uint64_t begin = 0;  // in bytes of the item, if it is one
  std::uint64_t end = 0;
};

std::vector<Portion> portions_of(std::span<const CopyItem> items) {
  std::vector<Portion> portions;
  Portion small;  // that is being gathered
  const auto close = [&](std::size_t next) {
    if (small.first < small.last) portions.push_back(small);
    small = {next, next, 0, 0};
  };
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::uint64_t bytes = bytes_of(items[i]);
    if (bytes >= kPortionBytes) {
      close(i + 1);
      for (std::uint64_t begin = 0; begin < bytes; begin += kPortionBytes) {
        portions.push_back({i, i + 1, begin, std::min(begin + kPortionBytes, bytes)});
      }
      continue;
    }
    if (small.end + bytes > kPortionBytes || small.last - small.first == kPortionItems) close(i);
    small.last = i + 1;
    small.end += bytes;
  }
  close(items.size());
  return portions;
}

void copy_part(const CopyItem& item, std::uint64_t begin, std::span<std::byte> target) {
  if (target.empty()) return;
  if (item.tensor == nullptr) {
    stream_copy(target, std::as_bytes(std::span(item.bytes)).subspan(begin, target.size()));
    return;
  }
  const TensorView& tensor = *item.tensor;
  const auto* const memory = static_cast<const std::byte*>(tensor.data);
  const Extents packed = row_major_strides(tensor.sizes);
  if (tensor.strides == packed) {
    stream_copy(target, {memory + begin, target.size()});
    return;
  }
  const std::size_t element = item_bytes(tensor.dtype);
  gather(Region(tensor.sizes, packed, tensor.strides), element, memory, static_cast<std::int64_t>(begin / element),
         target);
}

// In the arena.
std::uint64_t begin_of(std::span<const CopyItem> items, const Portion& portion) {
  const bool is_one = portion.last - portion.first == 1;
  return items[portion.first].arena_offset + (is_one ? portion.begin : 0);
}

void copy_portion(Arena& arena, std::span<const CopyItem> items, const Portion& portion) {
  if (portion.last - portion.first == 1) {
    const CopyItem& item = items[portion.first];
    const std::uint64_t length = portion.end - portion.begin;
    copy_part(item, portion.begin, arena.bytes().subspan(item.arena_offset + portion.begin, length));
    return;
  }
  for (const CopyItem& item : items.subspan(portion.first, portion.last - portion.first)) {
    copy_part(item, 0, arena.bytes().subspan(item.arena_offset, bytes_of(item)));
  }
}

std::size_t threads_for(const CopyOptions& options, std::size_t portions) {
  return std::min(options.thread_count != 0 ? options.thread_count : os::useful_thread_count(), portions);
}

}  // namespace

Result<void> copy_into(Arena& arena, std::span<const CopyItem> items, const CopyOptions& options) {
  const std::vector<Portion> portions = portions_of(items);
  os::OrderedProgress progress(portions.size());
  // A portion's part of the arena reaches to the next portion: frames lie in between, which the writer fills in.
  const auto begin_at = [&](std::size_t index) {
    if (index == 0) return std::uint64_t{0};
    return index < portions.size() ? begin_of(items, portions[index]) : options.arena_bytes;
  };
  const auto copy = [&](std::size_t index) -> Result<void> {
    CAIRN_TRY(arena.make_present(begin_at(index), begin_at(index + 1) - begin_at(index)));
    copy_portion(arena, items, portions[index]);
    const std::uint64_t done = progress.mark(index);
    if (done < portions.size()) arena.note_staged(begin_at(done));
    return {};
  };
  const std::size_t threads = threads_for(options, portions.size());
  if (threads <= 1 && !options.interrupted) {
    for (std::size_t i = 0; i < portions.size(); ++i) CAIRN_TRY(copy(i));
  } else {
    std::atomic<std::size_t> next{0};
    const auto work = [&](std::size_t, os::StopFlag& stop) -> Result<void> {
      while (!stop.is_set()) {
        const std::size_t mine = next.fetch_add(1);
        if (mine >= portions.size()) break;
        if (auto copied = copy(mine); !copied) return copied;
      }
      return {};
    };
    CAIRN_TRY(os::run_parallel(std::max<std::size_t>(threads, 1), options.interrupted, work));
  }
  if (portions.empty()) CAIRN_TRY(arena.make_present(0, options.arena_bytes));
  arena.note_present(options.arena_bytes);
  arena.note_staged(Arena::kAll);
  return {};
}

}  // namespace cairn::staging

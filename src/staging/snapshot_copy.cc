#include "staging/snapshot_copy.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "os/ordered_progress.h"
#include "os/parallel.h"

namespace cairn::staging {
namespace {

// The work of a thread per step: large enough to outweigh the cost of a step, small enough for all threads to end
// together.
constexpr std::uint64_t kPortionBytes = 4 * 1024 * 1024;
constexpr std::size_t kPortionItems = 1024;

constexpr std::size_t kKeysNamedMax = 32;  // in an error

// Several whole items, or a part of one item.
struct Portion {
  std::size_t first = 0;
  std::size_t last = 0;     // one past
  std::uint64_t begin = 0;  // in bytes of the item, for a portion of one item
  std::uint64_t end = 0;
};

std::vector<Portion> portions_of(std::span<const CopyItem> items) {
  std::vector<Portion> portions;
  Portion small;  // the portion being gathered
  const auto close = [&](std::size_t next) {
    if (small.first < small.last) portions.push_back(small);
    small = {next, next, 0, 0};
  };
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::uint64_t bytes = form_of(items[i]).bytes;
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

// The items whose copies differ from their samples. Thread-safe.
class TornItems {
 public:
  void add(std::size_t index) {
    const std::lock_guard lock(mutex_);
    indices_.insert(index);
  }
  // Fails if an item was added. Must not run concurrently with add().
  Result<void> expect_none(std::span<const CopyItem> items) const {
    if (indices_.empty()) return {};
    std::set<std::string_view> keys;  // chunks of one tensor have one key
    for (const std::size_t index : indices_) keys.insert(items[index].key);
    std::string list;
    std::size_t named = 0;
    for (const std::string_view key : keys) {
      if (named++ == kKeysNamedMax) break;
      list.append(list.empty() ? "'" : ", '").append(key).append("'");
    }
    if (keys.size() > kKeysNamedMax) list += " and " + std::to_string(keys.size() - kKeysNamedMax) + " more";
    return Error(ErrorCode::kInvalidArgument,
                 "tensors were written to while they were being staged, so this save would mix two states: " + list +
                     "; wait for the end of staging before the next optimizer step")
        .key(*keys.begin());
  }

 private:
  std::mutex mutex_;
  std::set<std::size_t> indices_;
};

// The offset of the portion in the arena.
std::uint64_t begin_of(std::span<const CopyItem> items, const Portion& portion) {
  const bool is_one = portion.last - portion.first == 1;
  return items[portion.first].arena_offset + (is_one ? portion.begin : 0);
}

// The copying of one call, shared by all of its threads.
class SnapshotCopy {
 public:
  SnapshotCopy(Arena& arena, std::span<const CopyItem> items, const SourceSamples* samples)
      : arena_(arena), items_(items), samples_(samples) {}

  void copy(const Portion& portion) {
    if (portion.last - portion.first == 1) {
      copy(portion.first, form_of(items_[portion.first]), portion.begin, portion.end - portion.begin);
      return;
    }
    for (std::size_t i = portion.first; i < portion.last; ++i) {
      const CopyForm form = form_of(items_[i]);
      copy(i, form, 0, form.bytes);
    }
  }
  Result<void> expect_whole() const { return torn_.expect_none(items_); }

 private:
  void copy(std::size_t index, const CopyForm& form, std::uint64_t begin, std::uint64_t length) {
    const CopyItem& item = items_[index];
    const std::span<std::byte> target = arena_.bytes().subspan(item.arena_offset + begin, length);
    copy_part(item, form, begin, target);
    if (samples_ != nullptr && !samples_->agree(index, form, begin, target)) torn_.add(index);
  }

  Arena& arena_;
  const std::span<const CopyItem> items_;
  const SourceSamples* const samples_;
  TornItems torn_;
};

std::size_t threads_for(const CopyOptions& options, std::size_t portions) {
  return std::min(options.thread_count != 0 ? options.thread_count : os::useful_thread_count(), portions);
}

}  // namespace

Result<void> copy_into(Arena& arena, std::span<const CopyItem> items, const CopyOptions& options) {
  const std::vector<Portion> portions = portions_of(items);
  os::OrderedProgress progress(portions.size());
  // The arena range of a portion reaches to the next portion: the frames in between are filled in by the writer.
  const auto begin_at = [&](std::size_t index) {
    if (index == 0) return std::uint64_t{0};
    return index < portions.size() ? begin_of(items, portions[index]) : options.arena_bytes;
  };
  SnapshotCopy snapshot_copy(arena, items, options.samples);
  const auto copy = [&](std::size_t index) -> Result<void> {
    CAIRN_TRY(arena.make_present(begin_at(index), begin_at(index + 1) - begin_at(index)));
    snapshot_copy.copy(portions[index]);
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
  CAIRN_TRY(snapshot_copy.expect_whole());
  if (options.confirm) CAIRN_TRY(options.confirm());
  arena.note_staged(Arena::kAll);
  return {};
}

}  // namespace cairn::staging

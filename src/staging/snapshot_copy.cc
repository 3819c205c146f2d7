// The staging of a save.
//
// 1. The items are divided into portions (portions.h). A portion of a device goes directly into the arena where the
//    arena is registered with the driver, and through a bounce buffer elsewhere (device_copies.h).
// 2. One thread queues the direct portions and waits for them. Beside it, threads of the CPU carry out the remaining
//    portions, and make the arena's pages present first.
// 3. The staged mark follows the portions in their order, whichever side copies them.
#include "staging/snapshot_copy.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "os/ordered_progress.h"
#include "os/parallel.h"
#include "staging/device_copies.h"
#include "staging/portions.h"
#include "staging/torn_items.h"

namespace cairn::staging {
namespace {

// The copying of one call, shared by all of its threads.
class SnapshotCopy {
 public:
  SnapshotCopy(Arena& arena, std::span<const CopyItem> items, const CopyOptions& options)
      : arena_(arena), items_(items), options_(options), portions_(portions_of(items)), progress_(portions_.size()) {
    if (options.devices != nullptr) {
      devices_ = std::make_unique<DeviceCopies>(arena, items, *options.devices, torn_,
                                                DeviceCopies::Limits{options.stall_max});
    }
    for (std::size_t i = 0; i < portions_.size(); ++i) {
      (is_direct(i) ? direct_ : by_threads_).push_back(i);
    }
    open_parts_ = (direct_.empty() ? 0 : 1) + by_threads_.size();
    if (open_parts_ == 0) open_fence();
  }

  Result<void> run() {
    const std::size_t given = options_.thread_count != 0 ? options_.thread_count : os::useful_thread_count();
    const std::size_t threads = std::min(given, by_threads_.size()) + (direct_.empty() ? 0 : 1);
    const auto work = [this](std::size_t worker, os::StopFlag& stop) {
      return worker == 0 && !direct_.empty() ? copy_directly(stop) : copy_by_threads(stop);
    };
    if (threads <= 1 && !options_.interrupted) {
      os::StopFlag never;
      CAIRN_TRY(work(0, never));
    } else {
      CAIRN_TRY(os::run_parallel(std::max<std::size_t>(threads, 1), options_.interrupted, work));
    }
    if (portions_.empty()) CAIRN_TRY(arena_.make_present(0, options_.arena_bytes));
    arena_.note_present(options_.arena_bytes);
    return torn_.expect_none(items_);
  }

 private:
  bool is_of_cpu(std::size_t index) const { return device_of(items_[portions_[index].first]).is_cpu(); }
  bool is_direct(std::size_t index) const { return !is_of_cpu(index) && devices_->is_direct(portions_[index]); }

  // The arena range of a portion reaches to the next portion: the frames in between are filled in by the writer.
  std::uint64_t begin_at(std::size_t index) const {
    if (index == 0) return 0;
    return index < portions_.size() ? begin_of(items_, portions_[index]) : options_.arena_bytes;
  }

  void note_done(std::size_t index) {
    const std::uint64_t done = progress_.mark(index);
    if (done < portions_.size()) arena_.note_staged(begin_at(done));
  }

  // Step 2, the queueing thread.
  Result<void> copy_directly(os::StopFlag& stop) {
    std::vector<Portion> portions;
    portions.reserve(direct_.size());
    for (const std::size_t index : direct_) {
      portions.push_back(portions_[index]);
      CAIRN_TRY(arena_.make_present(begin_at(index), begin_at(index + 1) - begin_at(index)));
    }
    return devices_->copy_directly(
        portions, stop, [this](std::size_t position) { note_done(direct_[position]); }, [this] { close_part(); });
  }

  // Step 2, each of the other threads.
  Result<void> copy_by_threads(os::StopFlag& stop) {
    while (!stop.is_set()) {
      const std::size_t mine = next_.fetch_add(1);
      if (mine >= by_threads_.size()) break;
      const std::size_t index = by_threads_[mine];
      CAIRN_TRY(arena_.make_present(begin_at(index), begin_at(index + 1) - begin_at(index)));
      if (is_of_cpu(index)) {
        copy_from_cpu(portions_[index]);
      } else {
        CAIRN_TRY(devices_->copy_by_bounce(portions_[index], stop));
      }
      note_done(index);
      close_part();
    }
    return {};
  }

  void copy_from_cpu(const Portion& portion) {
    if (portion.is_one_item()) {
      copy_from_cpu(portion.first, form_of(items_[portion.first]), portion.begin, portion.end - portion.begin);
      return;
    }
    for (std::size_t i = portion.first; i < portion.last; ++i) {
      const CopyForm form = form_of(items_[i]);
      copy_from_cpu(i, form, 0, form.bytes);
    }
  }

  void copy_from_cpu(std::size_t index, const CopyForm& form, std::uint64_t begin, std::uint64_t length) {
    const CopyItem& item = items_[index];
    const std::span<std::byte> target = arena_.bytes().subspan(item.arena_offset + begin, length);
    copy_part(item, form, begin, target);
    if (options_.samples != nullptr && !options_.samples->agree(index, form, begin, target)) torn_.add(index);
  }

  // One of the direct portions together, and of each remaining portion, needs the trainer's tensors no longer unless
  // the fence makes the trainer's streams wait.
  void close_part() {
    if (open_parts_.fetch_sub(1) == 1) open_fence();
  }
  void open_fence() {
    if (options_.fence != nullptr)
      options_.fence->open(devices_ != nullptr ? options_.devices->marks() : DeviceSources::Marks());
  }

  Arena& arena_;
  const std::span<const CopyItem> items_;
  const CopyOptions& options_;
  const std::vector<Portion> portions_;
  os::OrderedProgress progress_;
  TornItems torn_;
  std::unique_ptr<DeviceCopies> devices_;  // null if all items are in the memory of the CPU
  std::vector<std::size_t> direct_;        // indices of portions that devices write
  std::vector<std::size_t> by_threads_;    // indices of the remaining portions
  std::atomic<std::size_t> next_{0};       // in by_threads_
  std::atomic<std::size_t> open_parts_{0};
};

}  // namespace

Result<void> copy_into(Arena& arena, std::span<const CopyItem> items, const CopyOptions& options) {
  CAIRN_TRY(SnapshotCopy(arena, items, options).run());
  if (options.confirm) CAIRN_TRY(options.confirm());
  arena.note_staged(Arena::kAll);
  return {};
}

}  // namespace cairn::staging

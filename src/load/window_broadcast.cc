#include "load/window_broadcast.h"

#include <thread>

#include "core/sip_hash.h"
#include "load/broadcast_progress.h"
#include "os/start_thread.h"

namespace cairn::checkpointer {
namespace {

// The byte behind the bytes of a window.
constexpr std::byte kMemberIsWell{1};
constexpr std::byte kMemberGivesUp{2};

}  // namespace

// The work of the three threads.
class WindowBroadcast::Run {
 public:
  Run(WindowBroadcast& broadcast, Collectives& members, WindowBuffers& buffers)
      : broadcast_(broadcast), members_(members), buffers_(buffers), progress_(broadcast.options_.interrupted) {}

  void run(BroadcastOutcome& outcome) {
    if (!outcome.is_well()) progress_.give_up();
    WorkCount* const count = broadcast_.options_.count;
    for (std::size_t window = 0; count != nullptr && window < window_count(); ++window) {
      count->add_total(length_of(window));
    }
    Result<void> sent;
    {
      std::jthread reading;
      std::jthread placing;
      start(reading, [this] { read_own_windows(); });
      start(placing, [this] { place_windows(); });
      sent = broadcast_all();
      if (!sent) progress_.fail(sent.error());
      if (!progress_.gives_up()) progress_.await_all_placed(window_count());
    }
    if (!progress_.gives_up()) {
      const Result<void> checked = attempt([this] { return broadcast_.delivery_.finish(); });
      if (!checked) progress_.fail(checked.error());
    }
    outcome.bytes_read += bytes_read_;
    outcome.is_stopped |= is_stopped_;
    outcome.lost_transport |= !sent;
    if (!outcome.failure) outcome.failure = progress_.failure();
  }

 private:
  // A rank without threads makes its broadcasts all the same, and gives up.
  template <typename Work>
  void start(std::jthread& thread, Work&& work) {
    if (progress_.gives_up()) return;
    auto started = attempt([&] { return os::start_thread<std::jthread>("for a broadcast", std::forward<Work>(work)); });
    if (started)
      thread = std::move(*started);
    else
      progress_.fail(started.error());
  }

  std::size_t window_count() const { return broadcast_.windows_.batches.size(); }
  std::uint64_t length_of(std::size_t window) const {
    return broadcast_.windows_.batches[window].end - broadcast_.windows_.batches[window].begin;
  }
  std::size_t root_of(std::size_t window) const { return window % members_.size(); }
  bool is_own(std::size_t window) const { return root_of(window) == members_.rank(); }
  std::size_t own_before(std::size_t window) const {
    return window / members_.size() + (root_of(window) > members_.rank() ? 1 : 0);
  }
  // The windows of a kind take the buffers of the kind in turn.
  os::PageBuffer& buffer_of(std::size_t window) const {
    const std::size_t own = own_before(window);
    return is_own(window) ? buffers_.own[own % kBuffersOfAKind] : buffers_.received[(window - own) % kBuffersOfAKind];
  }
  // The window that has the buffer of `window` before; nullopt: none.
  std::optional<std::size_t> last_user(std::size_t window) const {
    std::size_t users = 0;
    for (std::size_t other = window; other-- > 0;) {
      users += is_own(other) == is_own(window) ? 1 : 0;
      if (users == kBuffersOfAKind) return other;
    }
    return std::nullopt;
  }

  // --- 1
  void read_own_windows() {
    for (std::size_t window = members_.rank(); window < window_count(); window += members_.size()) {
      const std::optional<std::size_t> last = last_user(window);
      if (progress_.gives_up() || (last && !progress_.await_placed(*last))) return;
      const Result<void> read = attempt([&] { return this->read(window); });
      if (!read) return progress_.fail(read.error());
      progress_.add_read(window);
    }
  }
  Result<void> read(std::size_t window) {
    const data_file::ReadBatch& batch = broadcast_.windows_.batches[window];
    const storage::ReadableFile& file = batch.file->bytes();
    const bool cached =
        data_file::better_from_cache(file, batch.begin, length_of(window), broadcast_.options_.direct_io);
    CAIRN_TRY_ASSIGN(broadcast_.bytes_of_[window],
                     data_file::fetch_range(file, batch.begin, length_of(window), cached, buffer_of(window)));
    bytes_read_ += length_of(window);
    return {};
  }

  // --- 2, 4
  Result<void> broadcast_all() {
    for (std::size_t window = 0; window < window_count(); ++window) {
      progress_.fail_if_interrupted();
      const std::span<std::byte> message = is_own(window) ? own_message(window) : received_message(window);
      CAIRN_TRY(members_.broadcast_in_place(message, root_of(window)));
      if (message.back() != kMemberIsWell) {
        is_stopped_ = !is_own(window);
        progress_.give_up();
        return {};
      }
      progress_.add_broadcast(window);
      if (broadcast_.options_.count != nullptr) broadcast_.options_.count->add_done(length_of(window));
    }
    return {};
  }
  std::span<std::byte> own_message(std::size_t window) {
    const bool is_well = progress_.await_read(window);
    if (!is_well) progress_.await_free({});
    // A member that gives up sends bytes without a meaning. The reading thread may still write into its own buffers.
    std::byte* const data = is_well ? broadcast_.bytes_of_[window].data() : buffers_.received[0].data();
    data[length_of(window)] = is_well ? kMemberIsWell : kMemberGivesUp;
    return {data, length_of(window) + 1};
  }
  std::span<std::byte> received_message(std::size_t window) {
    progress_.await_free(last_user(window));
    std::byte* const data = buffer_of(window).data();
    broadcast_.bytes_of_[window] = {data, length_of(window)};
    return {data, length_of(window) + 1};
  }

  // --- 3
  void place_windows() {
    for (std::size_t window = 0; window < window_count(); ++window) {
      if (!progress_.begin_placing(window)) return;
      progress_.end_placing(window, attempt([&] { return place(window); }));
    }
  }
  Result<void> place(std::size_t window) {
    const data_file::ReadBatch& batch = broadcast_.windows_.batches[window];
    for (std::size_t i = 0; i < batch.piece_count; ++i) {
      const data_file::ReadPiece& piece = broadcast_.windows_.pieces[batch.first_piece + i];
      const std::uint64_t offset = broadcast_.reads_[piece.read].stored().record_offset + piece.begin - batch.begin;
      const auto bytes = broadcast_.bytes_of_[window].subspan(offset, piece.end - piece.begin);
      const Result<void> placed = broadcast_.delivery_.deliver(piece, bytes, progress_.stop());
      if (placed || is_own(window)) {
        CAIRN_TRY(placed);
        continue;
      }
      return Error(placed.error())
          .while_doing("placing bytes that member " + std::to_string(root_of(window)) + " of the broadcast has read");
    }
    return {};
  }

  WindowBroadcast& broadcast_;
  Collectives& members_;
  WindowBuffers& buffers_;
  BroadcastProgress progress_;
  std::uint64_t bytes_read_ = 0;  // by the reading thread
  bool is_stopped_ = false;
};

WindowBroadcast::WindowBroadcast(std::vector<data_file::TensorRead> reads, const BroadcastOptions& options)
    : reads_(std::move(reads)),
      options_(options),
      windows_(data_file::schedule_windows(reads_, options.verify)),
      delivery_(reads_, windows_.pieces, options),
      bytes_of_(windows_.batches.size()) {}

std::uint64_t WindowBroadcast::number() const {
  if (windows_.batches.empty()) return 0;
  SipHash hash({0x636169726e2d6272, 0x6f6164636173742d});
  for (const data_file::ReadBatch& window : windows_.batches) {
    hash.add(window.file->name());
    hash.add(window.begin);
    hash.add(window.end);
  }
  return hash.finish();
}

std::uint64_t WindowBroadcast::bytes() const {
  std::uint64_t bytes = 0;
  for (const data_file::ReadBatch& window : windows_.batches) bytes += window.end - window.begin;
  return bytes;
}

void WindowBroadcast::run(Collectives& members, WindowBuffers& buffers, BroadcastOutcome& outcome) {
  Run(*this, members, buffers).run(outcome);
}

}  // namespace cairn::checkpointer

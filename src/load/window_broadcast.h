// WindowBroadcast: fills the targets of a group of reads that several ranks, the members, have in common. Each byte is
// read by one member and sent to the others.
//
// The reads are cut into windows, which are equal on all members (data_file::schedule_windows).
//
// 1. Window w belongs to member w mod n. A thread of each member reads the member's own windows in order, ahead of the
//    broadcasts, into kBuffersOfAKind buffers.
// 2. The calling thread broadcasts the windows in order, from the members to which they belong: the bytes, and a byte
//    that says whether the member is well. The member of a window waits for step 1.
// 3. A second thread checks the bytes of each window and puts the elements into the targets, in order.
// 4. A member that fails says so with its next own window, and ends. The others end after that window too. A member
//    that has no more windows reports its failure in the last step of the load, as every member does.
//
// All members make the same broadcasts, until a member says that it fails. A call of the transport that fails ends the
// member at once.
#pragma once

#include <cairn/collectives.h>
#include <cairn/result.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/work_count.h"
#include "data_file/piece_delivery.h"
#include "data_file/range_fetch.h"
#include "data_file/read_pieces.h"
#include "os/page_buffer.h"

namespace cairn::checkpointer {

// The buffers of a rank. Windows that the rank reads, and windows that the rank receives, have buffers of their own: a
// rank that has read far ahead can still receive.
inline constexpr std::size_t kBuffersOfAKind = 2;
struct WindowBuffers {
  struct Buffer : os::PageBuffer {
    // A page for the byte behind the window.
    Buffer() : PageBuffer(data_file::kWindowBytesMax + data_file::kFetchMarginBytes + os::kPageBytes) {}
  };
  std::array<Buffer, kBuffersOfAKind> own;
  std::array<Buffer, kBuffersOfAKind> received;
};

struct BroadcastOptions : data_file::DeliveryOptions {
  bool direct_io = true;
  std::function<bool()> interrupted = {};  // as in LoadOptions
  WorkCount* count = nullptr;              // as in ReadOptions
};

struct BroadcastOutcome {
  std::uint64_t bytes_read = 0;       // by this rank
  std::optional<Error> failure = {};  // of this rank; the first
  bool is_stopped = false;            // another member has said that it fails
  bool lost_transport = false;        // a call of the transport has failed
  bool is_well() const { return !failure && !is_stopped; }
  // The caller has interrupted a call of the transport: the other ranks get no more messages of this rank.
  bool has_left() const { return lost_transport && failure && failure->code() == ErrorCode::kCancelled; }
};

class WindowBroadcast {
 public:
  // Allocates all memory of the broadcast but the buffers.
  WindowBroadcast(std::vector<data_file::TensorRead> reads, const BroadcastOptions& options);

  // Equal on ranks with equal windows; 0 without windows.
  std::uint64_t number() const;
  std::uint64_t bytes() const;  // of all windows
  const std::vector<data_file::TensorRead>& reads() const { return reads_; }
  // Ends the use of the object.
  std::vector<data_file::TensorRead> give_back() && { return std::move(reads_); }

  // Returns when this rank has filled its targets or has ended; once. Adds to `outcome`; with an outcome that is not
  // well this rank fails from the begin.
  void run(Collectives& members, WindowBuffers& buffers, BroadcastOutcome& outcome);

 private:
  class Run;

  std::vector<data_file::TensorRead> reads_;
  BroadcastOptions options_;
  data_file::ReadSchedule windows_;
  data_file::PieceDelivery delivery_;
  std::vector<std::span<std::byte>> bytes_of_;  // by window: its bytes, in a buffer
};

}  // namespace cairn::checkpointer

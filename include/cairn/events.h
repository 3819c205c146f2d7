// subscribe: the events of the saves, loads, verifications, conversions and removals of this process. EventQueue: the
// events, kept for a thread that takes them later.
//
// Thread-safe. A thread of the engine calls the listeners, without a lock of the engine: the thread that has called
// save() or load(), or a thread of an asynchronous save. The operation goes on when the listeners have returned. An
// exception of a listener is dropped. Without a listener and without CAIRN_TRACE, no event is made.
//
// CAIRN_TRACE=DIR in the environment: the process also writes its events into a file in DIR, and so does its writer
// process (cairn/trace.h).
#pragma once

#include <cairn/result.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn {

// An operation has one kBegun, and ends with one of kCommitted, kFailed, kLoaded, kVerified and kDeleted. A removal has
// no kBegun. A RankShare that was handed over has no end: the coordinator's SaveClaim has its end.
enum class EventKind : std::uint8_t {
  kBegun,      // of any operation
  kPlanned,    // of a save or load: the ranks have agreed on who writes or reads what; of a conversion: the source is
               // open
  kStaged,     // of an asynchronous save: this rank's bytes are copied, and the tensors may change
  kWritten,    // of a save: this rank's files have their final names, and are synced if the save is durable; of a
               // conversion: the files are written, and all that was read is checked
  kCommitted,  // of a save or conversion: the checkpoint is in place, and is synced if it is durable
  kFailed,     // of any operation: `cause` has the reason
  kDeleted,    // of a removal
  kLoaded,     // of a load
  kVerified,   // of a verification that has read the checkpoint; `cause` is the first problem that it found
};
inline constexpr std::size_t kEventKindCount = 9;
std::string_view name_of(EventKind kind);  // "begun" and so on

enum class EventOperation : std::uint8_t {
  kSave,
  kLoad,
  kVerify,
  kRemove,
  kConvert,
};
inline constexpr std::size_t kEventOperationCount = 5;
std::string_view name_of(EventOperation operation);  // "save" and so on

struct Event {
  EventKind kind = EventKind::kBegun;
  EventOperation operation = EventOperation::kSave;
  bool asynchronous = false;  // of an AsyncCheckpointer's save
  std::uint64_t id = 0;       // of the operation, unique in the process
  // Of the checkpoint, as the caller named it; absolute in an asynchronous save. Of a conversion: the target.
  std::string directory;
  std::uint32_t rank = 0;
  std::uint32_t rank_count = 1;       // 0: unknown, in a save of separate steps (SaveClaim, RankShare)
  std::optional<std::uint64_t> step;  // in the name of `directory`, as for latest()
  // kStaged, kWritten and kLoaded: of this rank. kCommitted: written by this rank, with the metadata. kVerified:
  // checked. kDeleted: freed. All other kinds: 0.
  std::uint64_t bytes = 0;
  // The begin and the length of the step that ends with the event; of kBegun the begin of the operation. The step of an
  // asynchronous save's kWritten begins before the step of its kStaged ends: the writer writes while bytes are copied.
  std::chrono::system_clock::time_point started;
  std::chrono::nanoseconds duration{};
  std::chrono::nanoseconds since_begun{};  // from the begin of the operation to the event
  std::optional<Error> cause;
  std::int64_t process_id = 0;  // of the process that carried the step out: this process, or its writer process
};

using EventListener = std::function<void(const Event&)>;

// Ends the listener's calls. Movable; one thread at a time.
class [[nodiscard]] Subscription {
 public:
  Subscription() = default;
  Subscription(Subscription&& other) noexcept : number_(std::exchange(other.number_, 0)) {}
  Subscription& operator=(Subscription&& other) noexcept;
  Subscription(const Subscription&) = delete;
  Subscription& operator=(const Subscription&) = delete;
  // Waits until no other thread is in a call of the listener. From then on the listener is not called. A listener may
  // end its own subscription.
  ~Subscription() { end(); }
  void end() noexcept;

 private:
  friend Subscription subscribe(EventListener listener);
  explicit Subscription(std::uint64_t number) : number_(number) {}
  std::uint64_t number_ = 0;  // 0: none
};

// `listener` gets the events of operations that begin from now on, until the Subscription ends. Several threads may
// call the listener at the same time. A child made by fork has no listeners.
Subscription subscribe(EventListener listener);

// The events of `kinds` since the construction, up to `capacity`. Further events are counted and dropped: the engine
// never waits for the thread that takes the events. Not for a forked child.
class EventQueue {
 public:
  // Empty `kinds`: all.
  explicit EventQueue(std::size_t capacity, std::vector<EventKind> kinds = {});
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;

  // Waits for an event, for close(), or for `time`. Returns all events in the queue, the oldest first.
  std::vector<Event> take(std::chrono::milliseconds time);
  // No event is added any more. take() returns the remaining events, and then none, without a wait.
  void close();
  bool is_closed() const;
  std::uint64_t dropped() const;  // events since the construction

 private:
  void add(const Event& event);

  const std::size_t capacity_;
  const std::vector<EventKind> kinds_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Event> events_;
  std::uint64_t dropped_ = 0;
  bool closed_ = false;
  Subscription subscription_;  // last: ends before the other members
};

}  // namespace cairn

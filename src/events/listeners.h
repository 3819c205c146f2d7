// The listeners of this process: the callers' (cairn/events.h), and the trace file of CAIRN_TRACE.
#pragma once

#include <cairn/events.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace cairn::events {

class TraceFile;
struct Caller;
using Callers = std::vector<std::shared_ptr<Caller>>;

enum class Listening : std::uint8_t {
  kUnknown,  // the environment was not read
  kNobody,
  kSomebody,
};
extern std::atomic<Listening> listening;

Listening read_environment();

// Whether an event has a listener. Costs a load and a branch, from the second call on.
inline bool is_heard() {
  const Listening known = listening.load(std::memory_order_relaxed);
  return (known == Listening::kUnknown ? read_environment() : known) == Listening::kSomebody;
}

// Whether a caller has subscribed: events of a writer process are for these listeners alone.
bool has_subscriber();

// The listeners of an operation: those of its begin, as far as their subscriptions last. Of nobody in a child made by
// fork afterwards. Thread-safe.
class Audience {
 public:
  static Audience now();

  void tell(const Event& event) const;
  // No event of the operation follows.
  void leave(std::uint64_t operation) const;

 private:
  bool is_of_this_process() const;

  std::shared_ptr<const Callers> callers_;  // shared with the operations, and with the threads that call
  TraceFile* trace_ = nullptr;              // never destroyed in its process
  std::uint64_t forks_ = 0;                 // before this process, at the begin
};

// The trace's lines that are still in memory: for a thread that the trainer does not wait for.
void write_trace();

// Adds why CAIRN_TRACE has no effect, once in the process.
void add_trace_problem(std::vector<std::string>& warnings);

// Of a writer process: its name in the trace.
void name_process(const char* role);

}  // namespace cairn::events

// The listeners of this process: the callers' (cairn/events.h), and the trace file of CAIRN_TRACE.
#pragma once

#include <cairn/events.h>

#include <atomic>
#include <optional>
#include <string>

namespace cairn::events {

// Without a listener this flag is false: is_heard() then costs a load and a branch. True until the environment was
// read.
extern std::atomic<bool> may_be_heard;

bool has_listener();

// Whether an event has a listener.
inline bool is_heard() { return may_be_heard.load(std::memory_order_relaxed) && has_listener(); }

// Whether a caller has subscribed: events of a writer process are for these listeners alone.
bool has_subscriber();

// Calls all listeners.
void tell(const Event& event);

// No event of the operation follows.
void leave(std::uint64_t operation);

// Why CAIRN_TRACE has no effect, once.
std::optional<std::string> take_trace_problem();

// Of a writer process: its name in the trace.
void name_process(const char* role);

}  // namespace cairn::events

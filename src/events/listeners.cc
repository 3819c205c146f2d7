// The callers of a listener and the end of its subscription:
//
// 1. tell() copies the list of listeners, and calls each listener without the list's lock.
// 2. Before a call, tell() notes the call in the listener's Caller, unless the subscription has ended.
// 3. The end of a subscription takes the Caller out of the list, forbids new calls, and waits for the calls of other
//    threads. Calls of its own thread can't end before it: they are not counted.
#include "events/listeners.h"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "events/trace_file.h"
#include "os/process_state.h"

namespace cairn {
namespace events {
namespace {

struct Caller {
  Caller(std::uint64_t given_number, EventListener given) : number(given_number), listener(std::move(given)) {}

  const std::uint64_t number;
  const EventListener listener;
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t calls = 0;  // under way
  bool ended = false;
};

// The calls of this thread that are under way, the outermost first.
thread_local std::vector<const Caller*> calls_of_thread;

// (2)
void call(Caller& caller, const Event& event) {
  {
    const std::lock_guard lock(caller.mutex);
    if (caller.ended) return;
    ++caller.calls;
  }
  calls_of_thread.push_back(&caller);
  try {
    caller.listener(event);
  } catch (...) {  // a listener's failure is no failure of the operation
  }
  calls_of_thread.pop_back();
  const std::lock_guard lock(caller.mutex);
  --caller.calls;
  caller.changed.notify_all();
}

// (3)
void end_calls(Caller& caller) {
  const auto own = static_cast<std::size_t>(std::count(calls_of_thread.begin(), calls_of_thread.end(), &caller));
  std::unique_lock lock(caller.mutex);
  caller.ended = true;
  caller.changed.wait(lock, [&] { return caller.calls <= own; });
}

struct Listeners {
  // Shared with the threads that call. In a child made by fork, the calls of the parent's threads never end: the
  // objects are left alone.
  using List = std::vector<std::shared_ptr<Caller>>;
  std::unique_ptr<List> callers = std::make_unique<List>();
  std::uint64_t last_number = 0;
  bool environment_read = false;
  std::unique_ptr<TraceFile> trace;
  const char* role = "trainer";

  void in_child() {
    (void)callers.release();
    callers = std::make_unique<List>();
    (void)trace.release();
    environment_read = false;
    may_be_heard = true;
  }

  void read_environment() {
    if (std::exchange(environment_read, true)) return;
    const char* const directory = std::getenv("CAIRN_TRACE");
    if (directory != nullptr && *directory != '\0') trace = std::make_unique<TraceFile>(directory, role);
    note();
  }
  void note() { may_be_heard = !environment_read || trace || !callers->empty(); }
};

os::ProcessState<Listeners>& listeners = os::ProcessState<Listeners>::instance();

}  // namespace

std::atomic<bool> may_be_heard{true};

bool has_listener() {
  return listeners.use([](Listeners& all) {
    all.read_environment();
    return may_be_heard.load();
  });
}

bool has_subscriber() {
  if (!is_heard()) return false;
  return listeners.use([](const Listeners& all) { return !all.callers->empty(); });
}

void tell(const Event& event) {
  TraceFile* trace = nullptr;                                                // never destroyed in this process
  const Listeners::List callers = listeners.use([&](const Listeners& all) {  // (1)
    trace = all.trace.get();
    return *all.callers;
  });
  if (trace != nullptr) trace->add(event);
  for (const std::shared_ptr<Caller>& caller : callers) call(*caller, event);
}

namespace {

TraceFile* trace_of_process() {
  return listeners.use([](const Listeners& all) { return all.trace.get(); });  // never destroyed in this process
}

}  // namespace

void leave(std::uint64_t operation) {
  if (TraceFile* const trace = trace_of_process()) trace->leave(operation);
}

std::optional<std::string> take_trace_problem() {
  if (!is_heard()) return std::nullopt;
  TraceFile* const trace = trace_of_process();
  return trace == nullptr ? std::nullopt : trace->take_problem();
}

void name_process(const char* role) {
  listeners.use([role](Listeners& all) { all.role = role; });
}

}  // namespace events

Subscription subscribe(EventListener listener) {
  return Subscription(events::listeners.use([&](events::Listeners& all) {
    const std::uint64_t number = ++all.last_number;
    all.callers->push_back(std::make_shared<events::Caller>(number, std::move(listener)));
    all.note();
    return number;
  }));
}

void Subscription::end() noexcept {
  if (number_ == 0) return;
  const std::shared_ptr<events::Caller> caller =
      events::listeners.use([&](events::Listeners& all) -> std::shared_ptr<events::Caller> {
        const auto found = std::find_if(all.callers->begin(), all.callers->end(),
                                        [&](const auto& entry) { return entry->number == number_; });
        if (found == all.callers->end()) return nullptr;  // in a forked child
        std::shared_ptr<events::Caller> ended = std::move(*found);
        all.callers->erase(found);
        all.note();
        return ended;
      });
  number_ = 0;
  if (caller) events::end_calls(*caller);
}

Subscription& Subscription::operator=(Subscription&& other) noexcept {
  if (this != &other) {
    end();
    number_ = std::exchange(other.number_, 0);
  }
  return *this;
}

}  // namespace cairn

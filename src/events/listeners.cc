// The callers of a listener and the end of its subscription:
//
// 1. An operation takes the list of listeners at its begin. A list never changes: a subscription and its end make a new
//    list.
// 2. A thread counts its call in the listener's Caller, and then asks whether the subscription has ended. If so, it
//    takes the call back.
// 3. The end of a subscription takes the Caller out of the list, forbids new calls, and then waits until the calls of
//    other threads are over. Calls of its own thread can't end before it: they are not waited for.
//
// (2) and (3) are sequentially consistent: a call that the end does not see has seen the end.
#include "events/listeners.h"

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <utility>

#include "events/trace_file.h"
#include "os/process_state.h"

namespace cairn {
namespace events {

struct Caller {
  Caller(std::uint64_t given_number, EventListener given) : number(given_number), listener(std::move(given)) {}

  const std::uint64_t number;
  const EventListener listener;
  std::atomic<std::size_t> calls{0};  // under way
  std::atomic<bool> ended{false};
  std::mutex mutex;  // of `changed`
  std::condition_variable changed;
};

namespace {

// The calls of this thread that are under way, the outermost first.
thread_local std::vector<const Caller*> calls_of_thread;

void leave_call(Caller& caller) {
  --caller.calls;
  if (!caller.ended) return;
  const std::lock_guard lock(caller.mutex);
  caller.changed.notify_all();
}

// (2)
void call(Caller& caller, const Event& event) {
  ++caller.calls;
  if (caller.ended) return leave_call(caller);
  calls_of_thread.push_back(&caller);
  try {
    caller.listener(event);
  } catch (...) {  // a listener's failure is no failure of the operation
  }
  calls_of_thread.pop_back();
  leave_call(caller);
}

// (3)
void end_calls(Caller& caller) {
  const auto own = static_cast<std::size_t>(std::count(calls_of_thread.begin(), calls_of_thread.end(), &caller));
  caller.ended = true;
  std::unique_lock lock(caller.mutex);
  caller.changed.wait(lock, [&] { return caller.calls <= own; });
}

std::atomic<std::uint64_t> forks{0};  // between the first process and this one

struct Listeners {
  std::shared_ptr<const Callers> callers = std::make_shared<Callers>();
  // In a child made by fork, the calls of the parent's threads never end: the objects are left alone.
  std::vector<std::shared_ptr<const Callers>> callers_of_parents;
  std::uint64_t last_number = 0;
  bool environment_read = false;
  std::unique_ptr<TraceFile> trace;
  const char* role = "trainer";
  void in_child() {
    callers_of_parents.push_back(std::exchange(callers, std::make_shared<Callers>()));
    (void)trace.release();
    environment_read = false;
    ++forks;
    note();
  }

  void read_environment() {
    if (std::exchange(environment_read, true)) return;
    const char* const directory = std::getenv("CAIRN_TRACE");
    if (directory != nullptr && *directory != '\0') trace = std::make_unique<TraceFile>(directory, role);
    note();
  }
  void note() {
    const Listening known = trace || !callers->empty() ? Listening::kSomebody : Listening::kNobody;
    listening = environment_read ? known : Listening::kUnknown;
  }
};

os::ProcessState<Listeners>& listeners = os::ProcessState<Listeners>::instance();

TraceFile* trace_of_process() {
  return listeners.use([](const Listeners& all) { return all.trace.get(); });  // never destroyed in this process
}

}  // namespace

std::atomic<Listening> listening{Listening::kUnknown};

Listening read_environment() {
  return listeners.use([](Listeners& all) {
    all.read_environment();
    return listening.load();
  });
}

bool has_subscriber() {
  if (!is_heard()) return false;
  return listeners.use([](const Listeners& all) { return !all.callers->empty(); });
}

Audience Audience::now() {
  return listeners.use([](const Listeners& all) {  // (1)
    Audience audience;
    audience.callers_ = all.callers;
    audience.trace_ = all.trace.get();
    audience.forks_ = forks;
    return audience;
  });
}

bool Audience::is_of_this_process() const { return forks_ == forks.load(std::memory_order_relaxed); }

void Audience::tell(const Event& event) const {
  if (!is_of_this_process()) return;
  if (trace_ != nullptr) trace_->add(event);
  for (const std::shared_ptr<Caller>& caller : *callers_) call(*caller, event);
}

void Audience::leave(std::uint64_t operation) const {
  if (trace_ != nullptr && is_of_this_process()) trace_->leave(operation);
}

void write_trace() {
  if (!is_heard()) return;
  if (TraceFile* const trace = trace_of_process()) trace->write();
}

void add_trace_problem(std::vector<std::string>& warnings) {
  if (!is_heard()) return;
  TraceFile* const trace = trace_of_process();
  if (auto problem = trace == nullptr ? std::nullopt : trace->take_problem()) warnings.push_back(*std::move(problem));
}

void name_process(const char* role) {
  listeners.use([role](Listeners& all) { all.role = role; });
}

}  // namespace events

Subscription subscribe(EventListener listener) {
  return Subscription(events::listeners.use([&](events::Listeners& all) {
    const std::uint64_t number = ++all.last_number;
    auto with = std::make_shared<events::Callers>(*all.callers);
    with->push_back(std::make_shared<events::Caller>(number, std::move(listener)));
    all.callers = std::move(with);
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
        std::shared_ptr<events::Caller> ended = *found;
        auto without = std::make_shared<events::Callers>(*all.callers);
        std::erase(*without, ended);
        all.callers = std::move(without);
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

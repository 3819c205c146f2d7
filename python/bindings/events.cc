// EventQueue: the events of the engine, for a thread of Python that takes them.
#include <cairn/events.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "bound.h"
#include "errors.h"
#include "taken_queue.h"
#include "text.h"

namespace cairn::python {
namespace {

nb::tuple tuple_of(const Event& event) {
  const auto since_1970 = std::chrono::duration_cast<std::chrono::nanoseconds>(event.started.time_since_epoch());
  return nb::make_tuple(to_str(name_of(event.kind)), to_str(name_of(event.operation)), event.asynchronous, event.id,
                        to_bytes(event.directory), event.rank, event.rank_count, event.step, event.bytes,
                        since_1970.count(), event.duration.count(), event.since_begun.count(),
                        event.cause ? exception_of(*event.cause) : nb::none(), event.process_id);
}

std::vector<EventKind> kinds_of(const std::vector<std::uint8_t>& numbers) {
  std::vector<EventKind> kinds;
  kinds.reserve(numbers.size());
  for (const std::uint8_t number : numbers) kinds.push_back(static_cast<EventKind>(number));
  return kinds;
}

class PythonEventQueue : public TakenQueue<EventQueue, tuple_of> {
 public:
  PythonEventQueue(std::size_t capacity, const std::vector<std::uint8_t>& kinds)
      : TakenQueue(std::make_unique<EventQueue>(capacity, kinds_of(kinds))) {}
  std::uint64_t dropped() const { return queue().dropped(); }
};

}  // namespace

void bind_events(nb::module_& module) {
  nb::list kinds;  // by number
  for (std::size_t number = 0; number < kEventKindCount; ++number) {
    kinds.append(to_str(name_of(static_cast<EventKind>(number))));
  }
  module.attr("EVENT_KINDS") = nb::tuple(kinds);
  nb::class_<PythonEventQueue>(module, "EventQueue")
      .def(nb::init<std::size_t, const std::vector<std::uint8_t>&>())
      .def("take", &PythonEventQueue::take)
      .def("close", &PythonEventQueue::close)
      .def("is_closed", &PythonEventQueue::is_closed)
      .def("dropped", &PythonEventQueue::dropped);
}

}  // namespace cairn::python

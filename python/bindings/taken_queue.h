// TakenQueue: a queue of the engine, for a thread of Python that takes from the queue. The engine's threads never wait
// for Python's lock.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "bound.h"

namespace cairn::python {

// Queue: an EventQueue or a ProgressWatch. `to_tuple` makes the tuple of an item that Queue::take() returns.
template <typename Queue, auto to_tuple>
class TakenQueue {
 public:
  explicit TakenQueue(std::unique_ptr<Queue> queue = std::make_unique<Queue>()) : queue_(std::move(queue)) {}
  ~TakenQueue() {
    // In a child made by fork a thread of the parent may hold a lock of the queue for ever: the child frees nothing.
    if (getpid() != process_) (void)queue_.release();
  }
  TakenQueue(const TakenQueue&) = delete;
  TakenQueue& operator=(const TakenQueue&) = delete;

  nb::list take(std::uint64_t time_ms) {
    decltype(queue_->take({})) items;
    {
      const nb::gil_scoped_release released;
      items = queue_->take(std::chrono::milliseconds(time_ms));
    }
    nb::list result;
    for (const auto& item : items) result.append(to_tuple(item));
    return result;
  }
  void close() {
    const nb::gil_scoped_release released;
    queue_->close();
  }
  bool is_closed() const { return queue_->is_closed(); }

 protected:
  const Queue& queue() const { return *queue_; }

 private:
  const pid_t process_ = getpid();
  std::unique_ptr<Queue> queue_;
};

}  // namespace cairn::python

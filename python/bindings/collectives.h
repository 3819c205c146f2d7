// PythonCollectives: a Python object's five calls as the engine's Collectives. Keeps raised exceptions for the caller.
#pragma once

#include <cairn/collectives.h>
#include <nanobind/nanobind.h>

#include <memory>
#include <type_traits>
#include <utility>

#include "errors.h"

namespace nb = nanobind;

namespace cairn::python {

// Made, used and destroyed with Python's lock held. Only the object from engine() is called without the lock.
class PythonCollectives {
 public:
  // `calls` has the attributes rank and size, and the methods gather, scatter, broadcast, all_gather and barrier of
  // cairn._ranks.process_group.GroupCalls.
  explicit PythonCollectives(nb::object calls);

  // Takes Python's lock for each call. Owned by this object.
  Collectives& engine() { return *engine_; }

  // Returns the value of an engine call with these collectives, or raises the error of the engine call. The cause of
  // the raised error is the exception of the failed Python call. KeyboardInterrupt and further exceptions outside
  // Exception are raised unchanged, for any result.
  template <typename T>
  T unwrap(Result<T> result) {
    raise_interrupt();
    if (!result) raise(result.error());
    raised_.reset();
    if constexpr (!std::is_void_v<T>) return std::move(*result);
  }

  // For Python's cycle collector: exceptions refer to frames, and frames may refer to this object.
  int traverse(visitproc visit, void* arg) const;
  void clear();

 private:
  template <typename Work>
  auto ask(Work&& work) -> decltype(work());
  Error keep(const nb::python_error& error);
  void raise_interrupt();
  [[noreturn]] void raise(const Error& error);

  nb::object calls_;
  nb::object raised_;  // the exception of the last failed call, until unwrap() has raised the error
  std::unique_ptr<Collectives> engine_;
};

}  // namespace cairn::python

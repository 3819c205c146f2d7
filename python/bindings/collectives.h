// PythonCollectives: a Python object's five calls as the engine's Collectives; what they raise is kept for the caller.
#pragma once

#include <cairn/collectives.h>
#include <nanobind/nanobind.h>

#include <memory>
#include <type_traits>
#include <utility>

#include "errors.h"

namespace nb = nanobind;

namespace cairn::python {

// Made, used and destroyed with Python's lock held; only what engine() gives is called without it.
class PythonCollectives {
 public:
  // `calls` has the attributes rank and size, and the methods gather, scatter, broadcast, all_gather and barrier, as
  // cairn.process_group.GroupCalls has them.
  explicit PythonCollectives(nb::object calls);

  // Takes the lock for each call. Lives as long as this object.
  Collectives& engine() { return *engine_; }

  // The value of what the engine did with them, or its error raised, with the exception of the call that failed as its
  // cause. KeyboardInterrupt and its like are raised themselves, whatever the result.
  template <typename T>
  T unwrap(Result<T> result) {
    raise_interrupt();
    if (!result) raise(result.error());
    raised_.reset();
    if constexpr (!std::is_void_v<T>) return std::move(*result);
  }

  // For Python's cycle collector: exceptions lead to frames, and those may lead back here.
  int traverse(visitproc visit, void* arg) const;
  void clear();

 private:
  template <typename Work>
  auto ask(Work&& work) -> decltype(work());
  Error keep(const nb::python_error& error);
  void raise_interrupt();
  [[noreturn]] void raise(const Error& error);

  nb::object calls_;
  nb::object raised_;  // the exception of the last call that failed, until the Python caller has it
  std::unique_ptr<Collectives> engine_;
};

}  // namespace cairn::python

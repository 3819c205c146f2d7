// PythonCollectives: the calls of a Python object as the engine's Collectives. Keeps raised exceptions for the caller.
#pragma once

#include <cairn/collectives.h>
#include <nanobind/nanobind.h>

#include <cstddef>
#include <map>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "errors.h"

namespace nb = nanobind;

namespace cairn::python {

// Made, used and destroyed with Python's lock held. Only the object from engine() is called without the lock.
class PythonCollectives {
 public:
  // `calls` has the attributes rank and size, and the methods of cairn._ranks.process_group.GroupCalls.
  explicit PythonCollectives(nb::object calls);

  // Takes Python's lock for each call. Owned by this object.
  Collectives& engine() { return *engine_; }

  // Returns the value of an engine call with these collectives, or raises the error of the engine call. The cause of
  // the raised error is the exception of the failed Python call. KeyboardInterrupt and other exceptions outside
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
  // The object's calls as collectives; this object owns `calls`.
  std::unique_ptr<Collectives> engine_of(nb::handle calls);
  Result<Collectives*> subgroup(const std::vector<std::size_t>& ranks);
  template <typename Work>
  auto ask(Work&& work) -> decltype(work());
  Error keep(const nb::python_error& error);
  void raise_interrupt();
  [[noreturn]] void raise(const Error& error);

  struct Subgroup {
    nb::object calls;
    std::unique_ptr<Collectives> engine;
  };
  nb::object calls_;
  std::map<std::vector<std::size_t>, Subgroup> subgroups_;  // by ranks
  nb::object raised_;  // the exception of the last failed call, until unwrap() has raised the error
  std::unique_ptr<Collectives> engine_;
};

}  // namespace cairn::python

// ArchiveTaker: a Python function as LoadOptions::take_archive.
//
// Made, asked and destroyed with Python's lock held; the engine calls the function without the lock.
#pragma once

#include <cairn/checkpoint.h>
#include <nanobind/nanobind.h>

#include <functional>
#include <optional>

namespace nb = nanobind;

namespace cairn::python {

class ArchiveTaker {
 public:
  // `take(entry, chunk, wanted, payload)`; each box is (offsets, sizes). Outlives this object.
  explicit ArchiveTaker(nb::handle take) : take_(take) {}

  // Refers to this object, which must stay in its place. An exception of `take` becomes an error for all ranks.
  std::function<Result<void>(ArchivedChunk)> function();
  // Raises the exception of `take` itself: an exception that is no error of the load (Ctrl-C), and for a process that
  // loads alone every exception.
  void rethrow(bool is_alone);

 private:
  Result<void> call(const ArchivedChunk& archive);

  nb::handle take_;
  std::optional<nb::python_error> raised_;
};

}  // namespace cairn::python

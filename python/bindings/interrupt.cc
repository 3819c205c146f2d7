#include "interrupt.h"

#include <utility>

namespace cairn::python {

std::function<bool()> Interrupt::poll() {
  return [this] {
    const nb::gil_scoped_acquire lock;
    if (!raised_ && PyErr_CheckSignals() != 0) raised_.emplace();
    return raised_.has_value();
  };
}

void Interrupt::rethrow() {
  if (!raised_) return;
  nb::python_error error = std::move(*raised_);
  raised_.reset();
  throw error;
}

}  // namespace cairn::python

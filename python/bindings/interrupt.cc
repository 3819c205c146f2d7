#include "interrupt.h"

#include <utility>

#include "text.h"

namespace cairn::python {
namespace {

constexpr std::chrono::seconds kOneInterruption{1};

}  // namespace

std::function<bool()> Interrupt::poll() {
  return [this] {
    const nb::gil_scoped_acquire lock;
    if (!raised_ && PyErr_CheckSignals() != 0) raised_.emplace();
    return raised_.has_value();
  };
}

std::function<bool()> Interrupt::poll_again() {
  return [this] {
    const nb::gil_scoped_acquire lock;
    if (PyErr_CheckSignals() == 0) return raised_.has_value();
    if (raised_ && has_raised_again()) nb::raise_python_error();
    if (raised_) {
      PyErr_Clear();
    } else {
      raised_.emplace();
      raised_at_ = Clock::now();
    }
    return true;
  };
}

// Whether the pending exception is a second interruption, beside the interruption in `raised_`.
bool Interrupt::has_raised_again() const {
  return Clock::now() - raised_at_ >= kOneInterruption || PyErr_ExceptionMatches(PyExc_KeyboardInterrupt) == 0 ||
         !raised_->matches(PyExc_KeyboardInterrupt);
}

void Interrupt::note(const Error& error) {
  if (!raised_) return;
  const nb::handle exception = raised_->value();
  if (nb::hasattr(exception, "add_note")) {
    exception.attr("add_note")(to_str(error.what()));
  } else {
    nb::module_::import_("logging").attr("getLogger")("cairn").attr("error")("%s", to_str(error.what()));
  }
}

void Interrupt::rethrow() {
  if (!raised_) return;
  nb::python_error error = std::move(*raised_);
  raised_.reset();
  throw error;
}

}  // namespace cairn::python

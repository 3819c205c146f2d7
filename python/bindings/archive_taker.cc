#include "archive_taker.h"

#include <utility>

#include "bound.h"
#include "call_options.h"
#include "text.h"

namespace cairn::python {
namespace {

nb::tuple pair_of(const Box& box) {
  return nb::make_tuple(from_extents(box.offsets().data(), box.offsets().size()),
                        from_extents(box.sizes().data(), box.sizes().size()));
}

// The exception as an error for the other ranks.
Error error_of(const nb::python_error& raised) {
  const nb::handle value = raised.value();
  if (nb::hasattr(value, "code") && nb::hasattr(value, "place")) {  // a cairn.Error
    return reason_of(nb::make_tuple(value.attr("code"), value.attr("_bare_message"), value.attr("place"), nb::none()));
  }
  const bool is_error = PyErr_GivenExceptionMatches(value.ptr(), PyExc_Exception) != 0;
  return {is_error ? ErrorCode::kInvalidArgument : ErrorCode::kCancelled, to_utf8(nb::str(value))};
}

}  // namespace

std::function<Result<void>(ArchivedChunk)> ArchiveTaker::function() {
  return [this](const ArchivedChunk& archive) -> Result<void> {
    const nb::gil_scoped_acquire held;
    return call(archive);
  };
}

Result<void> ArchiveTaker::call(const ArchivedChunk& archive) {
  try {
    take_(archive.entry, pair_of(archive.chunk), pair_of(archive.wanted),
          nb::bytes(archive.payload.data(), archive.payload.size()));
    return {};
  } catch (nb::python_error& raised) {
    Error error = error_of(raised);
    raised_.emplace(std::move(raised));
    return error;
  }
}

void ArchiveTaker::rethrow(bool is_alone) {
  if (!raised_) return;
  const bool is_error = PyErr_GivenExceptionMatches(raised_->value().ptr(), PyExc_Exception) != 0;
  if (!is_alone && is_error) return;
  nb::python_error raised = std::move(*raised_);
  raised_.reset();
  throw raised;  // NOLINT(cert-err09-cpp,cert-err61-cpp): an exception that was caught before
}

}  // namespace cairn::python
